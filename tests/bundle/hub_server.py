"""A stand-in for Hugging Face's hub on this machine: the part of its HTTP interface that publishing and fetching a model use."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Hub:
    """Repositories in memory.

    files     {repository: {revision: {file: content}}}; a commit's name is the hash of its files
    private   repositories that need the token
    gated     repositories without access for anyone
    sizes     {file: size that is claimed for it}; None: none is
    requests  what was asked, in order
    """

    TOKEN = "hf_secret"

    def __init__(self) -> None:
        self.files: dict[str, dict[str, dict[str, bytes]]] = {}
        self.private: set[str] = set()
        self.gated: set[str] = set()
        self.sizes: dict[str, int | None] = {}
        self.requests: list[str] = []
        self.blobs: dict[str, bytes] = {}
        self.broken = False
        self.address = ""

    def commit_of(self, repository: str, revision: str) -> str | None:
        """The commit that a branch or the commit itself names."""
        revisions = self.files[repository]
        if revision in revisions:
            return hashlib.sha1(repr(sorted(revisions[revision].items())).encode()).hexdigest()
        return revision if any(self.commit_of(repository, name) == revision for name in revisions) else None

    def content(self, repository: str, revision: str) -> dict[str, bytes]:
        commit = self.commit_of(repository, revision)
        return next(
            files for name, files in self.files[repository].items() if self.commit_of(repository, name) == commit
        )

    @contextmanager
    def serving(self) -> Iterator["Hub"]:
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        self.address = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._file()

    def do_GET(self) -> None:
        self._file()

    def do_PUT(self) -> None:
        self._note()
        self.hub.blobs[self.path.rpartition("/")[2]] = self._body()
        self._answer(200, {})

    def do_POST(self) -> None:
        self._note()
        body = self._body()
        if self.hub.broken:
            return self._answer(503, {})
        if self.path == "/api/validate-yaml":
            return self._answer(200, {"errors": [], "warnings": []})
        if self.headers.get("Authorization") != f"Bearer {Hub.TOKEN}":
            return self._answer(401, {"error": "Invalid username or password."})
        if self.path == "/api/repos/create":
            return self._create(json.loads(body))
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", self.path):
            files = [
                {**file, "uploadMode": _mode(file["path"]), "shouldIgnore": False} for file in json.loads(body)["files"]
            ]
            return self._answer(200, {"files": files})
        if found := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", self.path):
            upload = [
                {**file, "actions": {"upload": {"href": f"{self.hub.address}/blobs/{file['oid']}", "header": {}}}}
                for file in json.loads(body)["objects"]
            ]
            return self._answer(200, {"transfer": "basic", "objects": upload})
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", self.path):
            return self._commit(found[1], [json.loads(line) for line in body.splitlines()])
        return self._answer(404, {"error": f"no {self.path} here"})

    def _create(self, asked: dict[str, Any]) -> None:
        repository = f"{asked['organization']}/{asked['name']}"
        new = repository not in self.hub.files
        if new:
            self.hub.files[repository] = {"main": {}}
            if asked.get("visibility") == "private":
                self.hub.private.add(repository)
        self._answer(200 if new else 409, {"url": f"{self.hub.address}/{repository}"})

    def _commit(self, repository: str, lines: list[dict[str, Any]]) -> None:
        files = self.hub.files[repository]["main"]
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                content = self.hub.blobs[value["oid"]]
                assert hashlib.sha256(content).hexdigest() == value["oid"]
                files[value["path"]] = content
        commit = self.hub.commit_of(repository, "main")
        self._answer(200, {"commitOid": commit, "commitUrl": f"{self.hub.address}/{repository}/commit/{commit}"})

    def _file(self) -> None:
        self._note()
        found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path)
        allowed = self.headers.get("Authorization") == f"Bearer {Hub.TOKEN}"
        if self.hub.broken:
            return self._answer(503, {})
        if found is None or found[1] not in self.hub.files or (found[1] in self.hub.private and not allowed):
            return self._answer(404 if allowed else 401, {"error": "Repository not found"}, "RepoNotFound")
        repository, revision, name = found.groups()
        if repository in self.hub.gated:
            return self._answer(403, {"error": "Access to this model is restricted"}, "GatedRepo")
        if self.hub.commit_of(repository, revision) is None:
            return self._answer(404, {"error": "no such revision"}, "RevisionNotFound")
        files = self.hub.content(repository, revision)
        commit = {"X-Repo-Commit": str(self.hub.commit_of(repository, revision))}
        if name not in files:
            return self._answer(404, {"error": "no such file"}, "EntryNotFound", commit)
        content = files[name]
        tag = hashlib.sha256(content).hexdigest()
        size = self.hub.sizes.get(name, len(content))
        return self._send(200, content, {**commit, "ETag": f'"{tag}"'}, size)

    def _note(self) -> None:
        self.hub.requests.append(f"{self.command} {self.path}")

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(
        self, code: int, value: dict[str, Any], error: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        kinds = {"Content-Type": "application/json", **({"X-Error-Code": error} if error else {}), **(headers or {})}
        content = json.dumps(value).encode()
        self._send(code, content, kinds, len(content))

    def _send(self, code: int, content: bytes, headers: dict[str, str], size: int | None) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        if size is not None:
            self.send_header("Content-Length", str(size))
        else:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *message: Any) -> None:
        pass


def _mode(file: str) -> str:
    return "lfs" if file.endswith((".safetensors", ".gz")) else "regular"
