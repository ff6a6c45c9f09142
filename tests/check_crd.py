"""Rendered RayJobs against a KubeRay CRD: ``make check-crd CRD=PATH``.

    python tests/check_crd.py CRD FILE...

A field that the CRD does not know is a mistake, as Kubernetes would drop it without a word. Rules in
CEL (x-kubernetes-validations) are not evaluated; formats of numbers are not looked at.
"""

import sys
from pathlib import Path

import jsonschema
import yaml

#: Kubernetes checks an object's own metadata by itself; a CRD says no more than that it is there.
OBJECT_META = {
    "type": "object",
    "required": ["name"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]([a-z0-9-]{0,45}[a-z0-9])?$"},
        "namespace": {"type": "string"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}


def closed(schema):
    """Return a structural schema as a JSON schema that refuses unknown fields."""
    if schema.get("x-kubernetes-int-or-string"):
        return {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    kept = {key: value for key, value in schema.items() if not key.startswith("x-")}
    for key in ("properties", "patternProperties"):
        if key in schema:
            kept[key] = {name: closed(field) for name, field in schema[key].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            kept[key] = closed(schema[key])
    is_open = schema.get("x-kubernetes-preserve-unknown-fields", False)
    if schema.get("type") == "object" and "additionalProperties" not in schema and not is_open:
        kept["additionalProperties"] = False
    if is_open and "properties" not in schema:
        kept.pop("additionalProperties", None)
    if schema.get("nullable") and "type" in kept:
        kept["type"] = [kept["type"], "null"]
    return kept


def schema_of(crd, version):
    """Return the closed schema of a version of the kind that a CRD defines."""
    for each in crd["spec"]["versions"]:
        if each["name"] == version:
            schema = closed(each["schema"]["openAPIV3Schema"])
            schema["properties"] |= {
                "apiVersion": {"const": f"{crd['spec']['group']}/{version}"},
                "kind": {"const": crd["spec"]["names"]["kind"]},
                "metadata": OBJECT_META,
            }
            schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
            return schema
    raise SystemExit(f"the CRD has no version {version}")


def documents(path):
    with Path(path).open() as file:
        return [document for document in yaml.safe_load_all(file) if document]


def mistakes(crd, rendered):
    """Return what is wrong with the documents of the CRD's kind; one is wrong if there is none."""
    kind, group = crd["spec"]["names"]["kind"], crd["spec"]["group"]
    ours = [document for document in rendered if document.get("kind") == kind]
    if not ours:
        return [f"there is no {kind} in it"]
    lines = []
    for document in ours:
        api, _, version = str(document.get("apiVersion")).partition("/")
        if api != group:
            lines.append(f"apiVersion: {api} is not {group}")
            continue
        checker = jsonschema.Draft202012Validator(schema_of(crd, version))
        lines += [
            f"{'.'.join(map(str, error.absolute_path))}: {error.message[:200]}"
            for error in checker.iter_errors(document)
        ]
    return lines


def main(crd_path, paths):
    (crd,) = documents(crd_path)
    code = 0
    for path in paths:
        lines = mistakes(crd, documents(path))
        code |= bool(lines)
        print(f"{path}: {'valid' if not lines else 'NOT VALID'}")
        print("".join(f"  {line}\n" for line in lines), end="")
    return code


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit("usage: make check-crd CRD=PATH [RENDERED=FILES]")
    sys.exit(main(sys.argv[1], sys.argv[2:]))
