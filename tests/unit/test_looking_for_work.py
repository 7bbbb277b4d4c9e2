"""How soon what is due is looked for again."""

from postroom.dispatch.recovery import rest_after


def test_a_look_that_takes_long_takes_a_tenth_of_the_time_at_most_and_none_waits_longer_than_the_poll() -> (
    None
):
    for took, rest in ((0, 0), (19, 0), (20, 180), (60, 540), (112, 1_000), (5_000, 1_000)):
        assert rest_after(took, most=1_000) == rest
    assert rest_after(50, most=5) == 5
