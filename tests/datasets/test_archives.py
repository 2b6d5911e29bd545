import hashlib
import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from incseg.datasets import archives
from incseg.datasets.archives import Archive, fetch, unpack
from incseg.errors import InputError
from web import Web

CONTENT = bytes(range(256)) * 100


@pytest.fixture(autouse=True)
def _offered(web: Web) -> None:
    web.files["data.tar"] = CONTENT


def archive(web: Web, name: str = "data.tar", content: bytes = CONTENT) -> Archive:
    return Archive(f"{web.address}/{name}", hashlib.md5(content).hexdigest(), "25 kB")


def silent(done: int, of: int) -> None:
    assert 0 <= done <= of


def test_a_file_is_fetched_once(web: Web, tmp_path: Path) -> None:
    for _ in range(2):
        assert fetch(archive(web), tmp_path / "new", silent).read_bytes() == CONTENT
    assert web.requests == [""]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["data.tar"]


def test_a_connection_that_keeps_breaking_off_is_taken_up_again(web: Web, tmp_path: Path) -> None:
    web.breaks_after = 10_000
    assert fetch(archive(web), tmp_path, silent).read_bytes() == CONTENT
    assert web.requests == ["", "bytes=10000-", "bytes=20000-"]


def test_a_later_command_goes_on_where_an_earlier_one_was_stopped(web: Web, tmp_path: Path) -> None:
    (tmp_path / "data.tar.part").write_bytes(CONTENT[:7000])
    assert fetch(archive(web), tmp_path, silent).read_bytes() == CONTENT
    assert web.requests == ["bytes=7000-"]


def test_stopped_after_the_last_byte(web: Web, tmp_path: Path) -> None:
    (tmp_path / "data.tar.part").write_bytes(CONTENT)
    assert fetch(archive(web), tmp_path, silent).read_bytes() == CONTENT


def test_a_server_that_cannot_go_on_in_the_middle_starts_anew(web: Web, tmp_path: Path) -> None:
    web.knows_ranges = False
    (tmp_path / "data.tar.part").write_bytes(b"x" * 7000)
    assert fetch(archive(web), tmp_path, silent).read_bytes() == CONTENT


def test_a_server_that_sends_nothing_more_is_given_up_and_what_is_here_is_kept(web: Web, tmp_path: Path) -> None:
    web.breaks_after = 0
    (tmp_path / "data.tar.part").write_bytes(CONTENT[:7000])
    with pytest.raises(InputError, match=r"broke off.* continue after the 7000 .* put it at .*/data\.tar, and run"):
        fetch(archive(web), tmp_path, silent)
    assert len(web.requests) == archives.ATTEMPTS
    assert (tmp_path / "data.tar.part").stat().st_size == 7000


def test_a_wrong_checksum_is_not_kept(web: Web, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"arrived for .*data\.tar did not have the checksum of .* download it again"):
        fetch(archive(web, content=b"other"), tmp_path, silent)
    assert not list(tmp_path.iterdir())


def test_a_persons_own_file_is_refused_but_not_deleted(web: Web, tmp_path: Path) -> None:
    (tmp_path / "data.tar").write_bytes(b"another archive of that name")
    with pytest.raises(InputError, match=r"data\.tar does not have the checksum .* delete it"):
        fetch(archive(web), tmp_path, silent)
    assert (tmp_path / "data.tar").exists()


def test_an_archive_put_there_by_hand_is_checked_and_used(web: Web, tmp_path: Path) -> None:
    (tmp_path / "data.tar").write_bytes(CONTENT)
    assert fetch(archive(web), tmp_path, silent) == tmp_path / "data.tar"
    assert not web.requests


def test_a_file_that_has_moved(web: Web, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"/gone\.tar answers 404 Not Found\. Or download that file \(25 kB\)"):
        fetch(archive(web, "gone.tar"), tmp_path, silent)
    assert len(web.requests) == 1


def test_offline_it_says_so_and_how_to_go_on(tmp_path: Path) -> None:
    closed = Archive("http://127.0.0.1:9/data.tar", "0" * 32, "25 kB")
    with pytest.raises(InputError, match=r"is this machine online\? Run the same command again .* on another machine"):
        fetch(closed, tmp_path, silent)


def zipped(path: Path, members: dict[str, bytes], link: str = "") -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
        if link:
            info = zipfile.ZipInfo(link)
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
            file.writestr(info, "/etc/passwd")
    return path


def tarred(path: Path, members: dict[str, bytes], link: str = "") -> Path:
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
        if link:
            info = tarfile.TarInfo(link)
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            file.addfile(info)
    return path


MEMBERS = {"top/a.txt": b"a", "top/below/b.txt": b"b" * 5000}


@pytest.mark.parametrize("name", ["x.zip", "x.tar", "x.tgz"])
def test_unpacking_puts_files_beside_what_is_there(tmp_path: Path, name: str) -> None:
    path = (zipped if name.endswith("zip") else tarred)(tmp_path / name, MEMBERS)
    (tmp_path / "root/top").mkdir(parents=True)
    (tmp_path / "root/top/mine.txt").write_text("mine")
    (tmp_path / f"root/.{name}.unpacking/left").mkdir(parents=True)  # by an interrupted go
    unpack(path, tmp_path / "root", silent)
    found = {str(p.relative_to(tmp_path / "root")) for p in (tmp_path / "root").rglob("*") if p.is_file()}
    assert found == {"top/a.txt", "top/below/b.txt", "top/mine.txt"}
    assert (tmp_path / "root/top/below/b.txt").read_bytes() == b"b" * 5000
    assert [p.name for p in (tmp_path / "root").iterdir()] == ["top"]


@pytest.mark.parametrize("name", ["x.zip", "x.tar"])
@pytest.mark.parametrize("member", ["../outside.txt", "top/../../outside.txt", "link"])
def test_an_archive_that_reaches_outside_is_refused_whole(tmp_path: Path, name: str, member: str) -> None:
    make = zipped if name.endswith("zip") else tarred
    path = make(tmp_path / name, MEMBERS, link=member) if member == "link" else make(
        tmp_path / name, {**MEMBERS, member: b"!"}
    )  # fmt: skip
    with pytest.raises(InputError, match=rf"{name} cannot be unpacked"):
        unpack(path, tmp_path / "root", silent)
    assert not list((tmp_path / "root").iterdir())
    assert not list(tmp_path.rglob("outside.txt"))


@pytest.mark.parametrize("name", ["x.zip", "x.tar", "x.tgz"])
@pytest.mark.parametrize("kept", [0.5, 0.0])
def test_an_archive_that_broke_off_is_refused_whole(tmp_path: Path, name: str, kept: float) -> None:
    path = (zipped if name.endswith("zip") else tarred)(tmp_path / name, MEMBERS)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(InputError, match=rf"{name} cannot be unpacked"):
        unpack(path, tmp_path / "root", silent)
    assert not list((tmp_path / "root").iterdir())


def test_a_member_with_a_wrong_byte_is_refused(tmp_path: Path) -> None:
    path = zipped(tmp_path / "x.zip", MEMBERS)
    path.write_bytes(path.read_bytes().replace(b"bbbbbbbb", b"bbbb?bbb", 1))
    with pytest.raises(InputError, match=r"Bad CRC-32 for file 'top/below/b\.txt'"):
        unpack(path, tmp_path / "root", silent)


def claiming(path: Path, members: dict[str, bytes], flags: int = 0, method: int | None = None) -> Path:
    """A zip file; its headers are changed to claim what Python does not write."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    raw = bytearray(path.read_bytes())
    directory = raw.find(b"PK\1\2")
    for flag_at, method_at in ((6, 8), (directory + 8, directory + 10)):
        raw[flag_at] |= flags
        raw[method_at] = raw[method_at] if method is None else method
    path.write_bytes(bytes(raw))
    return path


@pytest.mark.parametrize(
    ("flags", "method", "message"), [(1, None, "'a' is encrypted"), (0, 99, "by a method that Python does not have")]
)
def test_what_python_cannot_unpack_is_a_sentence(flags: int, method: int | None, message: str, tmp_path: Path) -> None:
    path = claiming(tmp_path / "data.zip", {"a": b"abc"}, flags, method)
    with pytest.raises(InputError, match=message):
        unpack(path, tmp_path / "out", silent)
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("kind", ["zip", "tgz"])
@pytest.mark.parametrize("limit", ["HARMLESS", "MOST_BYTES", "MOST_FILES"])
def test_more_than_can_be_meant_does_not_come_out(
    kind: str, limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, limit, 2 if limit == "MOST_FILES" else 10_000)
    path, members = tmp_path / f"data.{kind}", {name: bytes(100_000) for name in "abc"}
    if kind == "zip":
        claiming(path, members)
    else:
        with tarfile.open(path, "w:gz") as file:
            for name, content in members.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                file.addfile(member, io.BytesIO(content))
    with pytest.raises(InputError, match=r"is not unpacked: \d files, .* are accepted"):
        unpack(path, tmp_path / "out", silent)
    assert not list((tmp_path / "out").iterdir())
