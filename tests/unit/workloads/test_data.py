"""The bundled data: item `i` is the same for every worker, and mistakes in one's own files are named."""

from __future__ import annotations

import subprocess
import sys
from hashlib import sha256
from math import log
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from heterotrain.workloads import digits as digits_module
from heterotrain.workloads.array_files import ArrayFiles
from heterotrain.workloads.digits import TEST_SAMPLES, digits
from heterotrain.workloads.image_folder import ImageFolder
from heterotrain.workloads.svm import labelled_points
from heterotrain.workloads.synthetic import SyntheticImages, SyntheticTokens
from heterotrain.workloads.text_file import TextFile

Synthetic = SyntheticImages | SyntheticTokens
SYNTHETIC: list[type[Synthetic]] = [SyntheticImages, SyntheticTokens]
LIBRARY = Path(__file__).resolve().parents[3] / "trainer-image"

FINGERPRINT = """
import hashlib, torch
from heterotrain.workloads.synthetic import SyntheticImages, SyntheticTokens
image, label = SyntheticImages(1000)[321]
tokens, _ = SyntheticTokens(1000)[321]
print(hashlib.sha256(bytes(image.flatten().view(torch.uint8).tolist()) + bytes([label, *tokens])).hexdigest())
"""


def same(one: tuple[torch.Tensor, object], other: tuple[torch.Tensor, object]) -> bool:
    return all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("make", SYNTHETIC)
def test_item_depends_on_seed_and_index_alone(make: type[Synthetic]) -> None:
    forwards = [make(50)[i] for i in range(50)]
    torch.manual_seed(99)
    data = make(5000)
    assert all(same(data[i], forwards[i]) for i in reversed(range(50)))
    assert not same(data[0], data[1])
    assert not same(data[0], make(5000, seed=1)[0])
    assert not same(data[0], make(5000, train=False)[0])


def test_every_process_makes_the_same_items() -> None:
    image, label = SyntheticImages(1000)[321]
    tokens, _ = SyntheticTokens(1000)[321]
    here = sha256(bytes(image.flatten().view(torch.uint8).tolist()) + bytes([label, *tokens.tolist()])).hexdigest()
    other = subprocess.run(
        [sys.executable, "-c", FINGERPRINT],
        env={"PYTHONPATH": str(LIBRARY), "PYTHONHASHSEED": "5"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.strip() == here


@pytest.mark.parametrize("make", SYNTHETIC)
def test_synthetic_data_end(make: type[Synthetic]) -> None:
    data = make(3)
    assert len(data) == 3
    assert len(list(data)) == 3  # type: ignore[call-overload]  # iterated by its index
    with pytest.raises(IndexError, match="expected 0 to 2, found 3"):
        data[3]
    with pytest.raises(ValueError, match="samples: must be at least 1, found 0"):
        make(0)


def test_synthetic_images_have_the_shape_asked_for() -> None:
    data = SyntheticImages(20, size=10, channels=1, classes=3, dtype=torch.float64)
    images, labels = next(iter(DataLoader(data, 20)))
    assert images.shape == (20, 1, 10, 10)
    assert images.dtype == torch.float64
    assert set(labels.tolist()) == {0, 1, 2}


def test_images_of_a_class_resemble_each_other_in_training_and_test() -> None:
    means = []
    for train in (True, False):
        images, labels = next(iter(DataLoader(SyntheticImages(300, classes=2, train=train), 300)))
        means.append([images[labels == label].mean(0) for label in (0, 1)])
    (zero, one), (test_zero, _) = means
    assert (zero - test_zero).abs().mean() < 0.2 * (zero - one).abs().mean()


def test_synthetic_tokens_are_followed_by_few_others() -> None:
    data = SyntheticTokens(200, length=32, vocabulary=16, choices=3)
    assert data.entropy_nats == log(3)
    followers: dict[int, set[int]] = {}
    for tokens, following in (data[i] for i in range(len(data))):
        assert tokens.shape == following.shape == (32,)
        assert torch.equal(tokens[1:], following[:-1])
        for token, follower in zip(tokens.tolist(), following.tolist(), strict=True):
            followers.setdefault(token, set()).add(follower)
    assert {len(choices) for choices in followers.values()} == {3}


def test_more_choices_than_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="choices: expected 1 to 4, the vocabulary, found 5"):
        SyntheticTokens(1, vocabulary=4, choices=5)


def test_training_and_test_points_lie_about_one_plane() -> None:
    inputs, sides = labelled_points(4000, 5, flipped=0.0).tensors
    plane = torch.linalg.lstsq(inputs, sides.unsqueeze(1)).solution
    test_inputs, test_sides = labelled_points(1000, 5, flipped=0.0, train=False).tensors
    assert not torch.equal(inputs[:1000], test_inputs)
    assert ((test_inputs @ plane).squeeze(1).sign() == test_sides).float().mean() > 0.95


def pictures(folder: Path) -> Path:
    for name, colour in (("dog/b.png", (0, 0, 255)), ("cat/2.png", (255, 0, 0)), ("cat/1.png", (0, 255, 0))):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 6), colour).save(path)
    return folder


def test_image_folder_numbers_classes_and_images_by_name(tmp_path: Path) -> None:
    data = ImageFolder(pictures(tmp_path), size=8)
    assert data.class_names == ("cat", "dog")
    assert [label for _, label in (data[i] for i in range(len(data)))] == [0, 0, 1]
    image, _ = data[0]
    assert image.shape == (3, 8, 8)
    assert image.mean((1, 2)).tolist() == [0.0, 1.0, 0.0]


def test_image_folder_names_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match="absent: no such folder"):
        ImageFolder(tmp_path / "absent")
    with pytest.raises(ValueError, match="holds no folders"):
        ImageFolder(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty: holds no image"):
        ImageFolder(tmp_path)
    (tmp_path / "empty" / "broken.png").write_text("no image")
    with pytest.raises(OSError, match=r"broken\.png"):
        ImageFolder(tmp_path)[0]
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="pip install pillow"):
        ImageFolder(tmp_path)


def test_arrays_come_from_one_file_or_two(tmp_path: Path) -> None:
    inputs, targets = np.arange(12.0).reshape(4, 3), np.array([0, 1, 1, 0], dtype=np.int32)
    np.savez(tmp_path / "both.npz", inputs=inputs, targets=targets)
    np.save(tmp_path / "x.npy", inputs)
    np.save(tmp_path / "y.npy", targets)
    one, two = ArrayFiles(tmp_path / "both.npz"), ArrayFiles(tmp_path / "x.npy", tmp_path / "y.npy")
    assert len(one) == len(two) == 4
    assert all(same(one[i], two[i]) for i in range(4))
    row, target = two[1]
    assert (row.dtype, target.dtype) == (torch.float32, torch.int64)
    assert (row.tolist(), target.item()) == ([3.0, 4.0, 5.0], 1)


def test_bytes_are_pixels(tmp_path: Path) -> None:
    np.savez(tmp_path / "images.npz", inputs=np.full((2, 3, 4, 4), 255, np.uint8), targets=np.array([5, 6], np.uint8))
    image, label = ArrayFiles(tmp_path / "images.npz")[1]
    assert image.max() == 1.0
    assert (label.dtype, label.item()) == (torch.int64, 6)


def test_arrays_that_do_not_go_together_are_named(tmp_path: Path) -> None:
    both = tmp_path / "both.npz"
    np.savez(both, inputs=np.zeros((4, 3)), labels=np.zeros(5))
    with pytest.raises(ValueError, match=r"both\.npz: holds no array 'targets'; it has inputs, labels"):
        ArrayFiles(both)
    with pytest.raises(ValueError, match=r"targets of shape \(5,\) do not go with inputs of shape \(4, 3\)"):
        ArrayFiles(both, names=("inputs", "labels"))
    with pytest.raises(ValueError, match=r"expected one \.npz file, or \.npy files"):
        ArrayFiles(tmp_path / "x.npy")
    objects = tmp_path / "objects.npy"
    np.save(objects, np.array([{}]), allow_pickle=True)
    with pytest.raises(ValueError, match=r"objects\.npy: .*Python objects"):
        ArrayFiles(objects, objects)


@pytest.mark.parametrize(("tokens", "vocabulary"), [("bytes", 256), ("characters", 8)])
def test_text_is_cut_into_pieces_that_miss_no_token(tmp_path: Path, tokens: str, vocabulary: int) -> None:
    path = tmp_path / "text"
    path.write_text("hello word " * 10)
    data = TextFile(path, length=10, tokens=tokens)  # type: ignore[arg-type]  # parametrised
    assert data.vocabulary == vocabulary
    assert len(data) == 10
    assert "".join(data.decode(data[i][0].tolist()) for i in range(10)) == ("hello word " * 10)[:100]
    piece, following = data[3]
    assert torch.equal(piece[1:], following[:-1])
    with pytest.raises(IndexError):
        data[10]


def test_text_that_is_too_short_or_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text"
    for content in (b"", b"abc"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"text: expected at least 4 tokens, found {len(content)}"):
            TextFile(path, length=3)
    path.write_bytes(b"\xff" * 10)
    with pytest.raises(ValueError, match="text: is not UTF-8"):
        TextFile(path, length=3, tokens="characters")
    assert TextFile(path, length=3).decode([255]) == "\N{REPLACEMENT CHARACTER}"


def test_loader_workers_make_the_same_items() -> None:
    data: Dataset[tuple[torch.Tensor, int]] = SyntheticImages(8, size=8)
    here = [image for image, _ in DataLoader(data, 4)]
    there = [image for image, _ in DataLoader(data, 4, num_workers=1)]
    assert all(torch.equal(one, other) for one, other in zip(here, there, strict=True))


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    for part, found in ((slice(None, -TEST_SAMPLES), digits()), (slice(-TEST_SAMPLES, None), digits(train=False))):
        images, labels = found.tensors
        assert torch.equal(images, torch.tensor(bunch.images[part] / 16.0, dtype=torch.float32).unsqueeze(1))
        assert torch.equal(labels, torch.tensor(bunch.target[part], dtype=torch.int64))


def test_digits_are_read_without_importing_scikit_learn() -> None:
    code = "import sys; from heterotrain.workloads.digits import digits; digits(); print('sklearn' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(LIBRARY)}, capture_output=True, text=True, check=True
    )
    assert answer.stdout == "False\n"


def test_digits_without_scikit_learn_say_what_is_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits_module, "find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match="come with scikit-learn, which is not installed"):
        digits()
