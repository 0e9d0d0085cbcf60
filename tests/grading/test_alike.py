"""alike.py: copies stand out, what the stub gave everyone does not count."""

from flashlab.grading.alike import most_alike, runs, share

STUB = "def f(x):\n    raise NotImplementedError\n"


def test_copies_stand_out_whatever_their_layout_and_comments():
    one = STUB.replace("raise NotImplementedError", "y = x * 2 + 1\n    return y - 3")
    copied = "# mine\ndef f(x):\n\n    y = x*2 + 1  # doubled\n    return y - 3\n"
    other = STUB.replace("raise NotImplementedError", "return sum([x, x]) - 2")
    pairs = most_alike({"a": one, "b": copied, "c": other}, STUB, {})
    assert pairs[0] == (1.0, "a", "b") and all(amount < 0.5 for amount, *_ in pairs[1:])


def test_the_librarys_source_is_compared_too():
    pairs = most_alike({"a": "x = a * b + c * d - e"}, "", {"flash2.py": "y = 1\nx = a * b + c * d - e\nz = 2"})
    assert pairs == [(1.0, "a", "flash2.py")]


def test_stubs_are_alike_in_nothing():
    assert most_alike({"a": STUB, "b": STUB}, STUB, {}) == []


def test_text_that_is_no_python_is_read_as_far_as_it_goes():
    assert runs("x = (1 + 2 + 3 +") and share(frozenset(), frozenset()) == 0.0
