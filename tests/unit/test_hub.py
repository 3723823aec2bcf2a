import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.hub_server import HubClient, HubError, HubServer
from tests.helpers.tiny_models import tiny_task
from vitruvian import CheckpointError, Sapiens2ImageProcessor
from vitruvian.filesystem.atomic import write_text
from vitruvian.hub import (
    HubOptions,
    find_file,
    is_local,
    local_folder,
    require_file,
    weight_file,
)

OPEN = """
import torch, vitruvian
model = vitruvian.AutoModel.from_pretrained({name!r}{options})
result = [type(model).__name__, sum(float(p.detach().double().sum()) for p in model.parameters())]
"""
CONFIG = """
import vitruvian
result = vitruvian.AutoConfig.from_pretrained({name!r}{options}).to_dict()
"""


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    server = HubServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hf_home")


@pytest.fixture(scope="module")
def client(hub: HubServer, home: Path) -> Iterator[HubClient]:
    process = HubClient(hub.address, home)
    yield process
    process.close()


@pytest.fixture(scope="module")
def offline(hub: HubServer, home: Path) -> Iterator[HubClient]:
    process = HubClient(hub.address, home, HF_HUB_OFFLINE="1")
    yield process
    process.close()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    tiny_task("pose").save_pretrained(folder)
    Sapiens2ImageProcessor().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    assert len(tiny_task("pose").save_pretrained(folder, max_shard_size="100kB")) > 3
    return folder


@pytest.fixture(scope="module")
def opened() -> list[object]:
    """What `OPEN` gives for the checkpoint."""
    model = tiny_task("pose")
    return [
        "Sapiens2ForPoseEstimation",
        pytest.approx(sum(float(p.detach().double().sum()) for p in model.parameters())),
    ]


class TestDownload:
    def test_single_file_and_processor(
        self, hub: HubServer, client: HubClient, checkpoint: Path, opened: list[object]
    ) -> None:
        hub.add("me/pose", checkpoint)
        assert client.run(OPEN.format(name="me/pose", options="")) == opened
        code = "import vitruvian\nresult = type(vitruvian.AutoImageProcessor.from_pretrained('me/pose')).__name__"
        assert client.run(code) == "Sapiens2ImageProcessor"

    def test_second_opening_downloads_nothing(self, hub: HubServer, client: HubClient, checkpoint: Path) -> None:
        hub.add("me/again", checkpoint)
        client.run(OPEN.format(name="me/again", options=""))
        before = len(hub.requests("me/again"))
        client.run(OPEN.format(name="me/again", options=""))
        assert hub.requests("me/again")[before:] == [("HEAD", "/me/again/resolve/main/config.json", None)]
        logged = len(hub.log)
        client.run(OPEN.format(name="me/again", options=", force_download=True"))
        assert [method for method, path, _ in hub.log[logged:] if path.startswith("/blobs/")] == ["GET"]

    def test_shards(self, hub: HubServer, client: HubClient, sharded: Path, opened: list[object]) -> None:
        hub.add("me/shards", sharded)
        assert client.run(OPEN.format(name="me/shards", options="")) == opened

    def test_files_of_one_opening_belong_together(
        self, hub: HubServer, client: HubClient, checkpoint: Path, opened: list[object]
    ) -> None:
        repository = hub.add("me/moving", checkpoint)
        code = OPEN.format(name="me/moving", options="").replace(
            "model =",
            "from vitruvian import auto\nread = auto.read_model_config\n"
            "def slow(*args):\n    values = read(*args)\n    urlopen(CHANGE)\n    return values\n"
            "auto.read_model_config = slow\nmodel =",
        )
        head = f"from urllib.request import urlopen\nCHANGE = {hub.address + '/change'!r}\n"
        tail = "auto.read_model_config = read\n"
        hub.on_change = lambda: repository.branches.update(
            main={"config.json": b"{}"}, old=dict(repository.branches["main"])
        )
        assert client.run(head + code + tail) == opened

    def test_missing_shard(self, hub: HubServer, client: HubClient, sharded: Path) -> None:
        hub.add("me/lost", sharded).branches["main"].pop("model-00002-of-00004.safetensors")
        with pytest.raises(HubError, match=r"CheckpointError: me/lost: the shard model-00002-of-00004.* is missing"):
            client.run(OPEN.format(name="me/lost", options=""))

    def test_revision(self, hub: HubServer, client: HubClient, checkpoint: Path) -> None:
        repository = hub.add("me/branches", checkpoint)
        changed = json.loads(repository.branches["main"]["config.json"]) | {"note": "second"}
        repository.branches["v2"] = repository.branches["main"] | {"config.json": json.dumps(changed).encode()}
        assert "note" not in client.run(CONFIG.format(name="me/branches", options=""))
        assert client.run(CONFIG.format(name="me/branches", options=", revision='v2'"))["note"] == "second"
        commit = repository.commit("v2")
        assert client.run(CONFIG.format(name="me/branches", options=f", revision={commit!r}"))["note"] == "second"
        client.run(OPEN.format(name="me/branches", options=", revision='v2'"))
        assert hub.requests(f"me/branches/resolve/{commit}/model.safetensors")
        with pytest.raises(HubError, match=r"me/branches: has no revision 'v3'\. Check the branch"):
            client.run(CONFIG.format(name="me/branches", options=", revision='v3'"))

    def test_subfolder(self, hub: HubServer, client: HubClient, checkpoint: Path, opened: list[object]) -> None:
        repository = hub.add("me/deep", checkpoint)
        repository.branches["main"] = {f"inner/{name}": c for name, c in repository.branches["main"].items()}
        assert client.run(OPEN.format(name="me/deep", options=", subfolder='inner'")) == opened
        with pytest.raises(HubError, match=r"me/deep: expected config\.json, found none"):
            client.run(OPEN.format(name="me/deep", options=""))

    def test_cache_dir(self, hub: HubServer, client: HubClient, checkpoint: Path, tmp_path: Path) -> None:
        hub.add("me/cached", checkpoint)
        client.run(OPEN.format(name="me/cached", options=f", cache_dir={str(tmp_path)!r}"))
        assert list(tmp_path.glob("models--me--cached/snapshots/*/model.safetensors"))
        where = f", cache_dir={str(tmp_path)!r}, local_files_only=True"
        assert client.run(OPEN.format(name="me/cached", options=where))[0] == "Sapiens2ForPoseEstimation"
        with pytest.raises(HubError, match="not in the local cache and the network is switched off"):
            client.run(OPEN.format(name="me/cached", options=", local_files_only=True"))

    def test_token(self, hub: HubServer, client: HubClient, checkpoint: Path) -> None:
        hub.add("me/private", checkpoint, token="hf_secret")
        with pytest.raises(HubError, match=r"me/private: no such repository on the Hub, or it is private\..*HF_TOKEN"):
            client.run(OPEN.format(name="me/private", options=""))
        with pytest.raises(HubError, match="no such repository on the Hub, or it is private"):
            client.run(OPEN.format(name="me/private", options=", token='hf_wrong'"))
        assert client.run(OPEN.format(name="me/private", options=", token='hf_secret'"))
        assert {sent for _, path, sent in hub.requests("me/private/resolve/") if "model.safe" in path} == {
            "Bearer hf_secret"
        }

    def test_gated(self, hub: HubServer, client: HubClient, checkpoint: Path) -> None:
        hub.add("me/gated", checkpoint, gated=True)
        with pytest.raises(HubError, match=r"me/gated: access is gated\. Accept its license on the Hub") as caught:
            client.run(OPEN.format(name="me/gated", options=""))
        assert {"CheckpointError", "VitruvianError", "OSError"} <= set(caught.value.kinds)

    def test_no_such_repository(self, client: HubClient) -> None:
        for name in ("me/nothing", "me/bad name!"):
            with pytest.raises(HubError, match=f"CheckpointError: {name}: no such repository on the Hub"):
                client.run(CONFIG.format(name=name, options=""))

    def test_other_trouble(self, hub: HubServer, client: HubClient, checkpoint: Path) -> None:
        hub.add("me/broken", checkpoint, broken=True)
        with pytest.raises(HubError, match=r"CheckpointError: me/broken: .*config\.json"):
            client.run(CONFIG.format(name="me/broken", options=""))

    def test_optional_files_may_be_missing(self, hub: HubServer, client: HubClient, checkpoint: Path) -> None:
        hub.add("me/bare", checkpoint).branches["main"].pop("preprocessor_config.json")
        code = "import vitruvian\nvitruvian.AutoImageProcessor.from_pretrained('me/bare')"
        with pytest.raises(HubError, match=r"CheckpointError: me/bare: expected a file preprocessor_config\.json"):
            client.run(code)

    def test_server_that_is_gone(self, hub: HubServer, client: HubClient, home: Path, sharded: Path) -> None:
        hub.add("me/gone", sharded)
        client.run(OPEN.format(name="me/gone", options=""))
        lost = HubClient("http://127.0.0.1:9", home)  # nothing listens there
        try:
            lost.run("import time\ntime.sleep = lambda seconds: None")  # huggingface_hub waits between its tries
            assert lost.run(OPEN.format(name="me/gone", options=""))  # the cache knows there is no single file
            with pytest.raises(HubError, match=r"CheckpointError: me/other: cannot reach the Hub and config\.json is"):
                lost.run(CONFIG.format(name="me/other", options=""))
        finally:
            lost.close()


class TestOffline:
    def test_what_was_downloaded_opens(
        self, hub: HubServer, client: HubClient, offline: HubClient, sharded: Path, opened: list[object]
    ) -> None:
        hub.add("me/cached", sharded)
        client.run(OPEN.format(name="me/cached", options=""))
        before = len(hub.requests("me/cached"))
        assert offline.run(OPEN.format(name="me/cached", options="")) == opened
        assert client.run(OPEN.format(name="me/cached", options=", local_files_only=True")) == opened
        assert len(hub.requests("me/cached")) == before

    def test_what_was_not_says_so(self, offline: HubClient) -> None:
        with pytest.raises(HubError, match=r"me/never: config\.json is not in the local cache.*HF_HUB_OFFLINE"):
            offline.run(CONFIG.format(name="me/never", options=""))

    def test_optional_files_that_were_never_asked_for(
        self, hub: HubServer, client: HubClient, offline: HubClient, sharded: Path
    ) -> None:
        hub.add("me/optional", sharded)
        snapshot = "import huggingface_hub\nresult = huggingface_hub.snapshot_download('me/optional')"
        assert Path(client.run(snapshot), "config.json").exists()
        assert offline.run(OPEN.format(name="me/optional", options=""))[0] == "Sapiens2ForPoseEstimation"

    def test_optional_files_in_a_subfolder(
        self, hub: HubServer, client: HubClient, offline: HubClient, sharded: Path
    ) -> None:
        repository = hub.add("me/deeper", sharded)
        repository.branches["main"] = {f"inner/{name}": c for name, c in repository.branches["main"].items()}
        client.run("import huggingface_hub\nhuggingface_hub.snapshot_download('me/deeper')")
        assert offline.run(OPEN.format(name="me/deeper", options=", subfolder='inner'"))

    def test_processor_alone(self, hub: HubServer, client: HubClient, offline: HubClient, checkpoint: Path) -> None:
        hub.add("me/alone", checkpoint)
        client.run("import vitruvian\nvitruvian.Sapiens2ImageProcessor.from_pretrained('me/alone')")
        code = "import vitruvian\nresult = type(vitruvian.AutoImageProcessor.from_pretrained('me/alone')).__name__"
        assert offline.run(code) == "Sapiens2ImageProcessor"

    def test_half_a_download(self, hub: HubServer, client: HubClient, offline: HubClient, checkpoint: Path) -> None:
        hub.add("me/half", checkpoint)
        client.run(CONFIG.format(name="me/half", options=""))
        with pytest.raises(HubError, match=r"CheckpointError: me/half: expected weights .*Is the download complete"):
            offline.run(OPEN.format(name="me/half", options=""))


class TestUpload:
    def push(self, client: HubClient, folder: Path, call: str) -> str:
        code = f"import vitruvian\nmodel = vitruvian.AutoModel.from_pretrained({str(folder)!r})\nresult = {call}"
        found = client.run(code)
        assert isinstance(found, str)
        return found

    def test_model(self, hub: HubServer, client: HubClient, checkpoint: Path, opened: list[object]) -> None:
        where = self.push(client, checkpoint, "model.push_to_hub('me/new', token='hf_me', private=True)")
        assert where == f"{hub.address}/me/new/commit/{'c' * 40}"
        repository = hub.repositories["me/new"]
        assert repository.messages == ["made private", "Upload with vitruvian"]
        assert set(repository.branches["main"]) == {"config.json", "model.safetensors"}
        assert client.run(OPEN.format(name="me/new", options="")) == opened
        assert {sent for _, _, sent in hub.requests("/api/models/me/new/commit")} == {"Bearer hf_me"}

    def test_shards_replace_what_was_there(
        self, hub: HubServer, client: HubClient, checkpoint: Path, opened: list[object]
    ) -> None:
        hub.add("me/grown", checkpoint).branches["main"]["README.md"] = b"mine"
        self.push(client, checkpoint, "model.push_to_hub('me/grown', max_shard_size='100kB', token='hf_me')")
        files = set(hub.repositories["me/grown"].branches["main"])
        assert "model.safetensors" not in files  # readers would prefer it to the new shards
        assert {"README.md", "model.safetensors.index.json", "preprocessor_config.json"} < files
        assert client.run(OPEN.format(name="me/grown", options="")) == opened
        self.push(client, checkpoint, "model.push_to_hub('me/grown', token='hf_me', commit_message='One file')")
        assert not [name for name in hub.repositories["me/grown"].branches["main"] if "-of-" in name or "index" in name]
        assert hub.repositories["me/grown"].messages[-1] == "One file"

    def test_branch_and_pull_request(self, hub: HubServer, client: HubClient, checkpoint: Path) -> None:
        hub.add("me/flow")
        self.push(client, checkpoint, "model.push_to_hub('me/flow', revision='try', token='hf_me')")
        assert hub.repositories["me/flow"].branches["main"] == {}
        assert "model.safetensors" in hub.repositories["me/flow"].branches["try"]
        where = self.push(client, checkpoint, "model.push_to_hub('me/flow', create_pr=True, token='hf_me')")
        assert where == f"{hub.address}/me/flow/discussions/1"
        assert hub.repositories["me/flow"].branches["main"] == {}

    def test_saving_and_pushing_at_once_leaves_other_files_here(
        self, hub: HubServer, client: HubClient, checkpoint: Path, tmp_path: Path
    ) -> None:
        folder = tmp_path / "run7"
        folder.mkdir()
        (folder / "secrets.txt").write_text("mine")
        self.push(client, checkpoint, f"str(model.save_pretrained({str(folder)!r}, push_to_hub=True, token='hf_me'))")
        assert set(hub.repositories["me/run7"].branches["main"]) == {"config.json", "model.safetensors"}
        call = f"str(model.save_pretrained({str(folder)!r}, push_to_hub=True, repo_id='me/named', token='hf_me'))"
        self.push(client, checkpoint, call)
        assert "me/named" in hub.repositories
        with pytest.raises(HubError, match="save_pretrained: got repo_id, which only push_to_hub=True uses"):
            self.push(client, checkpoint, f"str(model.save_pretrained({str(folder)!r}, repo_id='me/x'))")

    def test_config_and_processor(self, hub: HubServer, client: HubClient, checkpoint: Path) -> None:
        self.push(client, checkpoint, "model.config.push_to_hub('me/parts', token='hf_me')")
        code = "vitruvian.Sapiens2ImageProcessor(do_pad=True).push_to_hub('me/parts', token='hf_me')"
        self.push(client, checkpoint, code)
        assert set(hub.repositories["me/parts"].branches["main"]) == {"config.json", "preprocessor_config.json"}

    def test_trouble_is_ours(self, client: HubClient, checkpoint: Path) -> None:
        calls = {
            "model.push_to_hub('me/new')": "uploading failed .*hf auth login",
            "model.push_to_hub('bad name!', token='hf_me')": "no such repository",
        }
        for call, message in calls.items():
            with pytest.raises(HubError, match=message) as caught:
                self.push(client, checkpoint, call)
            assert "CheckpointError" in caught.value.kinds


class TestLocal:
    def test_paths_of_every_kind(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_text(tmp_path / "me" / "model" / "config.json", "{}")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        for source in (tmp_path / "me/model", str(tmp_path / "me/model"), "me/model", "./me/model", "~/me/model"):
            assert is_local(source)
            assert find_file(source, "config.json", HubOptions()) is not None
            assert find_file(source, "other.json", HubOptions()) is None

    @pytest.mark.parametrize(
        "source",
        [
            "./none",
            "/none/at/all",
            "~/none",
            "none",
            "a/b/c",
            "..\\none",
            "me/model.safetensors",
            "me/c.json",
            Path("a/b"),
        ],
    )
    def test_what_cannot_be_a_hub_name(self, source: str | Path) -> None:
        with pytest.raises(CheckpointError, match="no such file or folder, and not a Hub name of the form owner/name"):
            is_local(source)

    def test_hub_names(self) -> None:
        assert not is_local("facebook/sapiens2-pose-0.4b")

    def test_required_file(self, tmp_path: Path) -> None:
        write_text(tmp_path / "a.txt", "x")
        with pytest.raises(CheckpointError, match=r"expected a file config\.json, found none\. The folder has: a\.txt"):
            require_file(tmp_path, "config.json", HubOptions())

    def test_weight_files(self, tmp_path: Path) -> None:
        write_text(tmp_path / "w.safetensors", "x")
        write_text(tmp_path / "w.txt", "x")
        assert weight_file(tmp_path) is None
        assert weight_file(str(tmp_path / "w.safetensors")) == tmp_path / "w.safetensors"
        assert local_folder(tmp_path / "w.safetensors") == tmp_path
        with pytest.raises(CheckpointError, match=r"w\.txt: expected a weight file"):
            weight_file(tmp_path / "w.txt")


class TestWriting:
    def test_a_block_that_fails_leaves_the_old_file(self, tmp_path: Path) -> None:
        write_text(tmp_path / "a.txt", "old")
        with pytest.raises(UnicodeEncodeError):
            write_text(tmp_path / "a.txt", "new \ud800")
        assert (tmp_path / "a.txt").read_text() == "old"
        assert len(list(tmp_path.iterdir())) == 1

    def test_folders_are_made(self, tmp_path: Path) -> None:
        write_text(tmp_path / "a" / "b.txt", "é")
        assert (tmp_path / "a" / "b.txt").read_text(encoding="utf-8") == "é"
