"""A local Hub server with the HTTP endpoints that downloads and uploads use, and a client process.

huggingface_hub reads `HF_ENDPOINT`, `HF_HOME` and `HF_HUB_OFFLINE` on import, so the code under test runs in separate
processes (`HubClient`). They are reused, since starting one takes seconds.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass
class Repository:
    """Files by branch; private repositories need `token`, `gated` ones are listed but not readable."""

    branches: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"main": {}})
    token: str | None = None
    gated: bool = False
    broken: bool = False
    messages: list[str] = field(default_factory=list)

    def commit(self, branch: str) -> str:
        """Return the hash of a branch."""
        digest = hashlib.sha1()
        for name, content in sorted(self.branches[branch].items()):
            digest.update(name.encode() + content)
        return digest.hexdigest()

    def find(self, revision: str) -> str | None:
        """Return the branch of a branch name or commit hash."""
        if revision in self.branches:
            return revision
        return next((branch for branch in self.branches if self.commit(branch) == revision), None)


class HubServer:
    """Serves repositories on a free local port."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.blobs: dict[str, bytes] = {}
        self.log: list[tuple[str, str, str | None]] = []  # method, path, authorization
        self.on_change: Callable[[], Any] = lambda: None  # called for /change
        handler = type("BoundHandler", (Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        port = self.server.server_address[1]
        self.address, self.storage = f"http://127.0.0.1:{port}", f"http://localhost:{port}"  # two hosts, as on the Hub
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def add(self, name: str, folder: Path | None = None, **options: Any) -> Repository:
        """Serve the files of a folder as a repository."""
        files = {} if folder is None else {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.*")}
        self.repositories[name] = Repository(branches={"main": files}, **options)
        return self.repositories[name]

    def requests(self, text: str) -> list[tuple[str, str, str | None]]:
        """Return the requests whose path contains a text."""
        return [entry for entry in self.log if text in entry[1]]

    def close(self) -> None:
        """Stop serving."""
        self.server.shutdown()
        self.server.server_close()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Do not log."""

    def do_HEAD(self) -> None:
        self.read()

    def do_GET(self) -> None:
        self.read()

    def do_POST(self) -> None:
        self.write()

    # ------------------------------------------------------------------ downloads

    def read(self) -> None:
        """Serve /owner/name/resolve/revision/path, large files through a redirect, as the Hub does."""
        path = self.note()
        if path == "/change":
            self.hub.on_change()
            self.send(200, b"")
            return
        if path.startswith("/blobs/"):
            self.send(200, self.hub.blobs[path.removeprefix("/blobs/")])
            return
        if path.startswith("/api/models/"):
            self.describe(path.removeprefix("/api/models/"))
            return
        if path.startswith("/api/"):
            self.refuse(404, None)
            return
        owner, name, verb, revision, *rest = path.lstrip("/").split("/")
        assert verb == "resolve", path
        repository = self.allowed(f"{owner}/{name}")
        if repository is None:
            return
        if repository.gated:
            self.refuse(403, "GatedRepo")
            return
        if repository.broken:
            self.refuse(418, None)
            return
        branch = repository.find(unquote(revision))
        if branch is None:
            self.refuse(404, "RevisionNotFound")
            return
        content = repository.branches[branch].get(unquote("/".join(rest)))
        commit = {"X-Repo-Commit": repository.commit(branch)}
        if content is None:
            self.refuse(404, "EntryNotFound", commit)
            return
        number = hashlib.sha256(content).hexdigest()
        if path.endswith(".json"):
            self.send(200, content, commit | {"ETag": f'"{number}"'})
            return
        self.hub.blobs[number] = content
        linked = {"X-Linked-ETag": f'"{number}"', "X-Linked-Size": str(len(content))}
        self.send(302, b"", commit | linked | {"Location": f"{self.hub.storage}/blobs/{number}"})

    def describe(self, path: str) -> None:
        """Answer /api/models/owner/name[/revision/…|/tree/…]: what a repository holds."""
        owner, name, *rest = path.split("/")
        repository = self.allowed(f"{owner}/{name}")
        if repository is None:
            return
        branch = repository.find(unquote(rest[1])) if rest[:1] in (["tree"], ["revision"]) else "main"
        if branch is None:
            self.refuse(404, "RevisionNotFound")
            return
        files = repository.branches[branch]
        if rest[:1] == ["discussions"]:
            self.send_json(
                {
                    "title": "Upload",
                    "num": 1,
                    "createdAt": "2026-01-01T00:00:00.000Z",
                    "status": "draft",
                    "repo": {"name": f"{owner}/{name}", "type": "model"},
                    "isPullRequest": True,
                    "changes": {"base": "refs/heads/main"},
                    "filesWithConflicts": [],
                    "events": [],
                }
            )
            return
        if rest[:1] == ["tree"]:
            table: Any = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in files.items()
            ]
        else:
            siblings = [{"rfilename": name} for name in files]
            table = {"id": f"{owner}/{name}", "sha": repository.commit(branch), "siblings": siblings}
        self.send_json(table)

    def allowed(self, name: str) -> Repository | None:
        """Return the repository, or None after refusing access."""
        repository = self.hub.repositories.get(name)
        sent = self.headers.get("Authorization")
        if repository is None or (repository.token is not None and sent != f"Bearer {repository.token}"):
            self.refuse(404 if sent else 401, "RepoNotFound")
            return None
        return repository

    # ------------------------------------------------------------------ uploads

    def write(self) -> None:
        """Create repositories and branches, and accept uploads and commits."""
        path = self.note()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self.headers.get("Authorization"):
            self.refuse(401, None, {"X-Error-Message": "Invalid username or password."})
            return
        if path == "/api/repos/create":
            self.create(json.loads(body))
            return
        owner, name, verb, *rest = path.removeprefix("/api/models/").split("/")
        repository = self.hub.repositories[f"{owner}/{name}"]
        branch = unquote("/".join(rest))
        if verb == "discussions":
            repository.branches["refs/pr/1"] = dict(repository.branches["main"])
            self.send_json({"num": 1})
        elif verb == "branch":
            if branch in repository.branches:
                self.refuse(409, None)
                return
            repository.branches[branch] = dict(repository.branches["main"])
            self.send_json({})
        elif verb == "preupload":
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            self.send_json({"files": files})
        elif verb == "commit":
            self.commit(f"{owner}/{name}", repository, branch, body)

    def create(self, request: dict[str, Any]) -> None:
        """Create a repository; respond 409 if it exists, as the Hub does."""
        name = f"{request.get('organization') or 'me'}/{request['name']}"
        exists = name in self.hub.repositories
        if not exists:
            self.hub.add(name)
            self.hub.repositories[name].messages.append(f"made {request.get('visibility')}")
        self.send_json({"url": f"{self.hub.address}/{name}", "name": name}, status=409 if exists else 200)

    def commit(self, name: str, repository: Repository, branch: str, body: bytes) -> None:
        """Apply the lines of a commit: a header, files and deletions."""
        if parse_qs(urlsplit(self.path).query).get("create_pr"):  # from older clients
            branch = "refs/pr/1"
        files = repository.branches.setdefault(branch, dict(repository.branches["main"]))
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                repository.messages.append(value["summary"])
            elif entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "deletedFile":
                files.pop(value["path"])
        number = "c" * 40
        self.send_json(
            {
                "commitUrl": f"{self.hub.address}/{name}/commit/{number}",
                "commitOid": number,
                "pullRequestUrl": f"{self.hub.address}/{name}/discussions/1",
            }
        )

    # ------------------------------------------------------------------ responses

    def note(self) -> str:
        """Log the request and return its path."""
        path = urlsplit(self.path).path
        self.hub.log.append((self.command, path, self.headers.get("Authorization")))
        return path

    def refuse(self, status: int, code: str | None, headers: dict[str, str] | None = None) -> None:
        """Respond with an error code of the Hub."""
        self.send(status, b"{}", (headers or {}) | ({"X-Error-Code": code} if code else {}))

    def send_json(self, value: Any, *, status: int = 200) -> None:
        """Respond with JSON."""
        self.send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        """Respond; HEAD requests get no content."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


WORKER = """
import json, sys, warnings
out = sys.stdout
sys.stdout = sys.stderr
names = {}
for line in sys.stdin:
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            exec(json.loads(line), names)
        answer = {"result": names.get("result"), "warnings": [w.category.__name__ for w in caught]}
    except BaseException as error:
        answer = {"error": [c.__name__ for c in type(error).__mro__], "message": str(error)}
    print(json.dumps(answer), file=out, flush=True)
"""


class HubError(Exception):
    """An exception in the client process: `kinds` are the names of its classes."""

    def __init__(self, kinds: list[str], message: str) -> None:
        super().__init__(f"{kinds[0]}: {message}")
        self.kinds = kinds


class HubClient:
    """A process that uses a `HubServer`, with its cache in a folder; `run` executes code in it."""

    def __init__(self, address: str, home: Path, **environment: str) -> None:
        foreign = ("HF_", "HUGGING", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith(foreign)}
        settings = {
            "HF_ENDPOINT": address,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "OMP_NUM_THREADS": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=inherited | settings | environment,
        )

    def run(self, code: str) -> Any:
        """Execute code and return its variable `result`; raise `HubError` if it raises."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise HubError(answer["error"], answer["message"])
        return answer["result"]

    def close(self) -> None:
        """End the process."""
        self.process.stdin.close()  # type: ignore[union-attr]
        self.process.wait(timeout=30)
