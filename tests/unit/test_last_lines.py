"""The few lines next to a question, and next to an active run: whole lines that people can read."""

import json

from postroom.services.last_lines import LINES, for_people


def test_they_begin_and_end_with_what_is_whole():
    assert for_people("31m red\x1b[0m\nnext\n\n", is_cut=True) == "next"
    assert for_people("31m red", is_cut=True) == "31m red"
    assert for_people("done\n\x1b[1mreading\x1b[0m \x1b[3", is_cut=False) == "done\nreading "
    assert for_people("".join(f"{number}\n" for number in range(9)), is_cut=False) == "5\n6\n7\n8"


def test_objects_of_a_protocol_are_left_out_and_other_braces_stay():
    told = [json.dumps({"type": "system", "session_id": "x" * 900}), "I look at the plan", "{not json}", "{}"]
    assert for_people("\n".join(told), is_cut=False) == "I look at the plan\n{not json}"
    assert for_people("\n".join(['{"type":"step"}'] * 2 * LINES), is_cut=False) == ""
    assert for_people('{"a":' * 100_000 + "}", is_cut=False).startswith('{"a":')
