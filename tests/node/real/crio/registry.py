"""An image registry with one image, for CRI-O on a node without a network: registry.py PORT.

The image has the folders and links of a root file system and no program. A pod mounts the node's /usr into it.
"""

import gzip
import hashlib
import io
import json
import sys
import tarfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LINKS = {name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")}
FOLDERS = ["dev", "etc", "proc", "run", "sys", "tmp", "usr", "var"]
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def layer():
    """A tar archive, the same in every run."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in FOLDERS:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(entry)
        for name, target in LINKS.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return out.getvalue()


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def described(media_type, data):
    return {"mediaType": media_type, "digest": digest(data), "size": len(data)}


def image():
    """What is served, by digest, and the digest of the manifest."""
    plain = layer()
    packed = gzip.compress(plain, mtime=0)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/usr/sbin:/usr/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [digest(plain)]},
    }
    config = json.dumps(config).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": described("application/vnd.oci.image.config.v1+json", config),
        "layers": [described("application/vnd.oci.image.layer.v1.tar+gzip", packed)],
    }
    manifest = json.dumps(manifest).encode()
    return {digest(data): data for data in (packed, config, manifest)}, digest(manifest)


BLOBS, LATEST = image()


class Registry(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        *_, kind, reference = ["", "", *self.path.split("/")]
        if kind == "manifests" and not reference.startswith("sha256:"):
            reference = LATEST
        data = b"{}" if self.path == "/v2/" else BLOBS.get(reference)
        self.send_response(404 if data is None else 200)
        data = data or b""
        self.send_header("Content-Type", MANIFEST if kind == "manifests" else "application/octet-stream")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Docker-Content-Digest", reference)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    do_HEAD = do_GET


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Registry).serve_forever()
