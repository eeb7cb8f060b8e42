"""Which host a program is priced for, and profiles from files."""

import msgspec
import pytest

from optrace.cost import profiles
from optrace.cost.profiles import DEFAULT_HOST, ProfileFileError, find_gpu, find_host, pricing

PROFILE = """
key = "{key}"
name = "a machine"
python_us = 1.0
autograd_us = 1.0
dispatch_us = 7.25
view_us = 1.0
launch_us = 1.0
sync_us = 1.0
queue_depth = 10
source = "made up"
measured = true
[class_us]
matmul = 9.5
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The user's folder of profiles, empty."""
    monkeypatch.setattr(profiles, "user_config_path", lambda _name: tmp_path)
    profiles.host_profiles.cache_clear()
    (tmp_path / "host").mkdir()
    yield tmp_path
    profiles.host_profiles.cache_clear()


def test_this_machine_as_it_was_calibrated(own, monkeypatch):
    monkeypatch.setattr(profiles.platform, "node", lambda: "My-Box.local")
    assert pricing().host.key == DEFAULT_HOST
    (own / "host" / "my-box-local.toml").write_text(PROFILE.format(key="my-box-local"))
    profiles.host_profiles.cache_clear()
    assert pricing().host.dispatch_us == 7.25
    assert pricing(host="default").host.key == "default"


def test_an_own_profile_stands_before_one_that_ships(own):
    (own / "host" / "default.toml").write_text(PROFILE.format(key="default"))
    profiles.host_profiles.cache_clear()
    assert find_host("default").dispatch_of("matmul") == 9.5


def test_an_own_profile_that_is_none_says_the_way_out(own):
    (own / "host" / "old.toml").write_text(PROFILE.format(key="old").replace("view_us", "no_longer_us"))
    profiles.host_profiles.cache_clear()
    with pytest.raises(
        ProfileFileError, match=r"old\.toml is no HostProfile: .*; remove it, or let `optrace cal"
    ):
        pricing()


def test_a_path_names_a_profile(tmp_path):
    file = tmp_path / "box.toml"
    file.write_text(PROFILE.format(key="box"))
    assert find_host(str(file)).key == "box"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("key = ", "is no HostProfile"),
        (PROFILE.format(key="x").replace("python_us", "snake_us"), "snake_us"),
    ],
)
def test_a_file_that_holds_no_profile(tmp_path, text, says):
    file = tmp_path / "box.toml"
    file.write_text(text)
    with pytest.raises(ProfileFileError, match=says):
        find_host(str(file))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ProfileFileError, match=r"cannot read the profile .*box.toml: No such file"):
        find_gpu(str(tmp_path / "box.toml"))


def test_a_host_whose_reference_loop_takes_longer_takes_longer_by_less():
    host = msgspec.structs.replace(
        find_host("default"),
        python_loop_us=1.0,
        class_us={"matmul": 8.0},
        network_backward_us={"gather": 2.0},
    )
    slow = host.at_speed(4.0)
    assert (slow.python_us, slow.launch_us, slow.python_loop_us) == (4.0 * 2, 4.0 * 2, 4.0)
    assert (slow.class_us, slow.network_backward_us) == ({"matmul": 16.0}, {"gather": 4.0})
    assert slow.queue_depth == host.queue_depth
    assert host.at_speed(None) is host
