"""A bucket of an S3-compatible store for tests."""

import contextlib
import logging
import urllib.request

import pytest

from dpsweep.foundation import bucket_path

REGION = "eu-central-1"
SECRET = "token-of-the-bucket-77c0"


class Bucket:
    """A store of its own with one bucket, ``lab``; the environment names it while it runs."""

    name = "lab"

    def __init__(self):
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line a request
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.endpoint = f"http://{host}:{port}"

    @property
    def environment(self):
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": REGION,
        }

    @property
    def client(self):
        import boto3

        return boto3.client("s3", endpoint_url=self.endpoint)

    def names(self, prefix=""):
        """Return the names of all objects, in order."""
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.name, Prefix=prefix
        )
        return [item["Key"] for page in pages for item in page.get("Contents", [])]

    def content(self):
        """Return everything that is there, names too."""
        names = self.names()
        bodies = [self.client.get_object(Bucket=self.name, Key=key)["Body"].read() for key in names]
        return b"\n".join([*(name.encode() for name in names), *bodies])

    def stop(self):
        self._server.stop()


def forget():
    """Let stores be opened and asked anew: another environment names another one."""
    bucket_path._store.cache_clear()
    bucket_path._answered.clear()


@contextlib.contextmanager
def running():
    """Yield a ``Bucket``; it is gone afterwards."""
    bucket = Bucket()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in bucket.environment.items():
            patch.setenv(name, value)
        forget()
        urllib.request.urlopen(f"{bucket.endpoint}/moto-api/reset", data=b"").close()
        place = {"LocationConstraint": REGION}
        bucket.client.create_bucket(Bucket=bucket.name, CreateBucketConfiguration=place)
        try:
            yield bucket
        finally:
            bucket.stop()
            forget()
