"""Images in folders, in the formats of SVHN, CIFAR-100, Imagenette and CelebA."""

import numpy as np
import pytest
import torch

from quietgrad import data
from quietgrad.data.images import IMAGENETTE_CLASSES
from quietgrad.errors import DataError

Image = pytest.importorskip("PIL.Image")


def pixels(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def svhn(folder, labels, **changed):
    from scipy.io import savemat

    for seed, part in enumerate(("test", "train")):
        images = pixels(32, 32, 3, len(labels), seed=seed)
        content = {"X": images, "y": np.array([labels]).T} | changed
        savemat(folder / f"{part}_32x32.mat", content)


def test_svhn(tmp_path):
    svhn(tmp_path, [1, 10, 9])
    found = data.load("svhn", tmp_path)
    assert found.train_labels.tolist() == [1, 0, 9]
    whole = torch.from_numpy(pixels(32, 32, 3, 3))
    assert torch.equal(found.test_images[2], whole[:, :, :, 2].permute(2, 0, 1))


def test_wrong_svhn(tmp_path):
    svhn(tmp_path, [1, 11])
    with pytest.raises(DataError, match="other than 1 to 10"):
        data.load("svhn", tmp_path)
    svhn(tmp_path, [1, 2], X=pixels(32, 32, 3, 5))
    with pytest.raises(DataError, match="expected uint8"):
        data.load("svhn", tmp_path)
    whole = (tmp_path / "train_32x32.mat").read_bytes()
    for content in (b"no matrix", whole[: len(whole) // 2]):
        (tmp_path / "train_32x32.mat").write_bytes(content)
        with pytest.raises(DataError, match="MATLAB"):
            data.load("svhn", tmp_path)
    (tmp_path / "train_32x32.mat").unlink()
    with pytest.raises(DataError, match=r"train_32x32.mat is not in"):
        data.load("svhn", tmp_path)


@pytest.mark.parametrize("below", ["", "cifar-100-binary"])
def test_cifar100(tmp_path, below):
    (tmp_path / below).mkdir(exist_ok=True)
    images = pixels(3, 3072)
    labels = np.array([[1, 99], [2, 0], [3, 7]], np.uint8)
    for part, shown in (("train", 255 - images), ("test", images)):
        content = np.concatenate([labels, shown], 1).tobytes()
        (tmp_path / below / f"{part}.bin").write_bytes(content)
    found = data.load("cifar100", tmp_path)
    assert found.train_labels.tolist() == [99, 0, 7]
    assert torch.equal(found.test_images.flatten(1), torch.from_numpy(images))


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "cut"), (bytes(3000), "cut"), (b"\0\x64" + bytes(3072), "label 100")],
)
def test_wrong_cifar100(tmp_path, content, said):
    for part in ("train", "test"):
        (tmp_path / f"{part}.bin").write_bytes(content)
    with pytest.raises(DataError, match=said):
        data.load("cifar100", tmp_path)


def picture(path, colour, size=(30, 20), **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(options.get("mode", "RGB"), size, colour).save(path, "JPEG")


def imagenette(folder):
    for part, blue in (("train", 200), ("val", 0)):
        for number, name in enumerate(IMAGENETTE_CLASSES):
            picture(folder / part / name / f"{name}_1.JPEG", (number * 20, 0, blue))
    return folder


@pytest.mark.parametrize("below", ["", "imagenette2-160"])
def test_imagenette(tmp_path, below):
    imagenette(tmp_path / below)
    picture(tmp_path / below / "train" / "n01440764" / "grey.JPEG", 200, mode="L")
    found = data.load("imagenette", tmp_path, size=8)
    assert found.train_images.shape == (11, 3, 8, 8)
    assert found.test_labels.tolist() == list(range(10))
    reds = found.test_images[:, 0].float().mean((1, 2)).tolist()
    assert reds == pytest.approx([20 * number for number in range(10)], abs=3)


def test_wrong_imagenette(tmp_path):
    with pytest.raises(DataError, match="not a folder"):
        data.load("imagenette", tmp_path)
    imagenette(tmp_path)
    with pytest.raises(ValueError, match="size=0"):
        data.load("imagenette", tmp_path, size=0)
    one = tmp_path / "train" / "n01440764" / "n01440764_1.JPEG"
    whole = one.read_bytes()
    for content in (b"GIF89a", whole[: len(whole) // 2]):
        one.write_bytes(content)
        with pytest.raises(DataError, match="cannot be read as a JPEG"):
            data.load("imagenette", tmp_path)
    one.unlink()
    with pytest.raises(DataError, match=r"holds no \*.JPEG"):
        data.load("imagenette", tmp_path)
    (tmp_path / "train" / "n00000000").mkdir()
    with pytest.raises(DataError, match="holds n00000000"):
        data.load("imagenette", tmp_path)


ATTRIBUTES = "4\nBald Smiling \n1.jpg -1  1\n2.jpg  1 -1\n3.jpg -1 -1\n4.jpg  1  1\n"
PARTS = "1.jpg 0\n2.jpg 0\n3.jpg 1\n4.jpg 2\n"


def celeba(folder, attributes=ATTRIBUTES, parts=PARTS):
    (folder / "list_attr_celeba.txt").write_text(attributes)
    (folder / "list_eval_partition.txt").write_text(parts)
    for number in range(1, 5):
        picture(folder / "img_align_celeba" / f"{number}.jpg", (0, 0, 60 * number), (178, 218))
    return folder


def test_celeba(tmp_path):
    found = data.load("celeba", celeba(tmp_path), size=16)
    assert found.train_images.shape == (2, 3, 16, 16)
    assert found.train_labels.tolist() == [1, 0]
    assert found.test_labels.tolist() == [1]
    assert found.test_images[0, 2].float().mean().item() == pytest.approx(240, abs=3)
    assert data.load("celeba", tmp_path, attribute="Bald").train_labels.tolist() == [0, 1]
    blank = celeba(tmp_path, attributes=ATTRIBUTES + "\n")
    assert data.load("celeba", blank).train_labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"attributes": ATTRIBUTES.replace("Smiling", "Frowning")}, "no attribute 'Smiling'"),
        ({"attributes": ATTRIBUTES.replace("-1  1", "-1")}, "cut"),
        ({"attributes": ATTRIBUTES.replace("-1  1", "-1  2")}, "cut"),
        ({"attributes": ATTRIBUTES.replace("4\n", "5\n", 1)}, "says 5"),
        ({"attributes": ""}, "no attribute"),
        ({"parts": PARTS.replace("1.jpg 0", "1.jpg 3")}, "expected an image and 0, 1, 2"),
        ({"parts": PARTS.replace("1.jpg", "../1.jpg")}, "without folders"),
        ({"parts": PARTS.replace("1.jpg", "9.jpg")}, r"does not have 9.jpg"),
        ({"parts": "1.jpg 0\n"}, "no images of part 2"),
    ],
)
def test_wrong_celeba(tmp_path, changed, said):
    with pytest.raises(DataError, match=said):
        data.load("celeba", celeba(tmp_path, **changed))
    with pytest.raises(DataError, match=r"list_attr_celeba.txt is not in"):
        data.load("celeba", tmp_path / "img_align_celeba")
