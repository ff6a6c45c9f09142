"""No call in the source runs what a file, a spec or the network holds (SECURITY.md)."""

import ast

import pytest
from import_graph import modules

#: Where a name of a spec or of a table becomes a module; each says why that is meant.
IMPORTERS = {
    "dpsweep": "its own lazy names",
    "dpsweep.foundation.registry": "names of tables in this package, and entry points",
    "dpsweep.cli.doctor": "names that stand in its source",
    "dpsweep.cluster.package": "its own packages",
    "dpsweep.trainables.networks.own_models": "model.name: PACKAGE.MODULE:FUNCTION runs your code",
}
#: Modules that may name pickle: an unpickler that looks up nothing but its own table.
UNPICKLERS = {"dpsweep.trainables.data.vision.plain_pickle"}
#: Modules that may ask MLflow for a model, and so run what a model of a registry brings.
MODEL_LOADERS = {"dpsweep.tracking.registry.loading", "dpsweep.tracking.registry.served"}
FORBIDDEN = {
    "eval", "exec", "compile", "__import__",
    "pickle.load", "pickle.loads", "pickle.Unpickler", "cloudpickle.load", "cloudpickle.loads",
    "dill.load", "dill.loads", "marshal.load", "marshal.loads", "shelve.open", "joblib.load",
    "yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "yaml.unsafe_load_all",
    "yaml.full_load_all", "os.system", "os.popen", "subprocess.getoutput",
    "subprocess.getstatusoutput", "shutil.unpack_archive", "torch.jit.load", "torch.hub.load",
    "tempfile.mktemp", "runpy.run_path", "runpy.run_module", "pandas.read_pickle", "pd.read_pickle",
    "xml.etree.ElementTree.parse",
}  # fmt: skip
FORBIDDEN_METHODS = {"extractall", "extract", "read_pickle", "allow_pickle"}
FORBIDDEN_MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "telnetlib"}


def dotted(node):
    """Return ``a.b.c`` of a call's function; ``?`` stands for what is no name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value) or '?'}.{node.attr}"
    return ""


def full_names(tree):
    """Return what each imported name stands for: ``np`` -> ``numpy``, ``load`` -> ``torch.load``."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {a.asname: a.name for a in node.names if a.asname}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return names


def keyword(call, name):
    given = [k.value for k in call.keywords if k.arg == name]
    return given[0].value if given and isinstance(given[0], ast.Constant) else ...


def flaws(module, text):
    """Return ``line: what`` of each unsafe call or import in a source."""
    tree = ast.parse(text)
    names, found = full_names(tree), []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            roots = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module]
            roots = [root for root in roots if root != "pickle" or module not in UNPICKLERS]
            if any((root or "").partition(".")[0] in FORBIDDEN_MODULES for root in roots):
                found.append((node.lineno, f"import of {roots}"))
        if not isinstance(node, ast.Call):
            continue
        plain = dotted(node.func)
        first, dot, rest = plain.partition(".")
        name = names.get(first, first) + dot + rest
        last = name.rpartition(".")[2]
        if name in FORBIDDEN or plain in FORBIDDEN or last in FORBIDDEN_METHODS:
            found.append((node.lineno, name))
        elif name == "torch.load" and keyword(node, "weights_only") is not True:
            found.append((node.lineno, "torch.load without weights_only=True"))
        elif name == "numpy.load" and keyword(node, "allow_pickle") is not False:
            found.append((node.lineno, "numpy.load without allow_pickle=False"))
        elif name.startswith(("subprocess.", "asyncio.create_subprocess")) and (
            keyword(node, "shell") not in (..., False) or last.endswith("_shell")
        ):
            found.append((node.lineno, f"{name} with a shell"))
        elif last == "import_module" and module not in IMPORTERS:
            found.append((node.lineno, f"{name}: a module by name"))
        elif last == "load_model" and module not in MODEL_LOADERS:
            found.append((node.lineno, f"{name}: a model of a registry"))
    return [f"{module}:{line}: {what}" for line, what in sorted(found)]


def test_the_source_has_no_unsafe_call():
    sources = {name: path.read_text() for name, path in modules().items()}
    assert len(sources) > 300
    assert [flaw for name, text in sources.items() for flaw in flaws(name, text)] == []
    assert IMPORTERS.keys() | MODEL_LOADERS | UNPICKLERS <= sources.keys()


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch.load(path)",
        "import torch\ntorch.load(path, weights_only=False)",
        "from torch import load\nload(path)",
        "import torch as t\nt.load(path, weights_only=flag)",
        "import pickle",
        "from pickle import loads",
        "import cloudpickle as c",
        "import yaml\nyaml.load(text, Loader=yaml.Loader)",
        "from yaml import unsafe_load\nunsafe_load(text)",
        "import numpy as np\nnp.load(path)",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "from numpy import load\nload(path, allow_pickle=True)",
        "eval(text)",
        "exec(text)",
        "__import__(name)",
        "import subprocess\nsubprocess.run(text, shell=True)",
        "import os\nos.system(x)",
        "import tarfile\ntarfile.open(path).extractall(to)",
        "import importlib\nimportlib.import_module(name)",
        "from importlib import import_module as get\nget(name)",
        "import mlflow\nmlflow.pyfunc.load_model(uri)",
    ],
)
def test_unsafe_calls_are_seen(text):
    assert flaws("dpsweep.some.module", text)


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch.load(path, weights_only=True)",
        "import numpy as np\nnp.load(path, allow_pickle=False)",
        "import yaml\nyaml.safe_load(text)",
        "model.eval()",
        "build(model).eval()",
        "import subprocess\nsubprocess.run(['ls'])",
        "re.compile(text)",
    ],
)
def test_safe_calls_are_left_alone(text):
    assert flaws("dpsweep.some.module", text) == []
