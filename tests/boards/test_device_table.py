"""The table of devices: read with its faults named, extended without loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from burnish.boards.link import command
from burnish.boards.table import BoardEntry, add, default_path, read
from burnish.errors import ParameterError

TEXT = """# the boards of the lab
[[device]]
name = "pi"
kind = "aarch64-cortex-a53"  # four of them
reach = "ssh"
address = "tuner@pi.lab"
"""


def test_devices_are_read_and_added_without_loss(tmp_path: Path) -> None:
    path = tmp_path / "new" / "devices.toml"
    first = BoardEntry("pi", "aarch64-cortex-a53", "ssh", "tuner@pi.lab", python="python3.9")
    add(path, first)
    path.write_text(TEXT + path.read_text().replace('"pi"', '"po"'))
    add(path, BoardEntry("here", "cpu"))
    assert path.read_text().startswith(TEXT)
    assert [device.name for device in read(path)] == ["pi", "po", "here"]
    assert read(path)[1].python == "python3.9"
    with pytest.raises(ParameterError, match="'here' twice; allowed: each name once"):
        add(path, BoardEntry("here", "other"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[device]\n", "is no TOML file"),
        ("[board]\n", "has board; allowed: tables"),
        ("device = 3\n", "which is no list; allowed"),
        ('[[device]]\nname = "a"\n', "device 1: missing: kind; allowed: name, kind"),
        ('[[device]]\nname = "a"\nkind = "b"\nport = 3\n', "device 1: unknown: port"),
        ('[[device]]\nname = "a"\nkind = 3\n', "kind: found 3; allowed: text"),
        ('[[device]]\nname = "a b"\nkind = "c"\n', "found the name 'a b'"),
        ('[[device]]\nname = "a"\nkind = ""\n', "no kind"),
        ('[[device]]\nname = "a"\nkind = "b"\nreach = "usb"\n', "reach 'usb'; allowed: ssh, local, emulator"),
        ('[[device]]\nname = "a"\nkind = "b"\nreach = "ssh"\n', "found the address ''"),
        ('[[device]]\nname = "a"\nkind = "b"\nreach = "ssh"\naddress = "-oProxyCommand=x"\n', "found the address '-o"),
        ('[[device]]\nname = "a"\nkind = "b"\naddress = "c"\n', "an address with reach 'local'"),
    ],
)
def test_faults_are_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "devices.toml"
    path.write_text(text)
    with pytest.raises(ParameterError, match=words):
        read(path)


def test_the_file_is_the_users_or_the_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BURNISH_DEVICES", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert default_path() == tmp_path / "burnish" / "devices.toml"
    monkeypatch.setenv("BURNISH_DEVICES", "mine.toml")
    assert default_path() == Path("mine.toml")


def test_ssh_asks_nothing_and_learns_no_host_key() -> None:
    words = command(BoardEntry("pi", "x", "ssh", "tuner@pi.lab"))
    assert words[0] == "ssh"
    assert "BatchMode=yes" in words
    assert "StrictHostKeyChecking=yes" in words
    assert words[-2] == "tuner@pi.lab"
    assert words[-1].startswith("python3 -I -c 'import os")
