"""What was changed in a report or a folder is noticed, or it is said that it cannot be."""

import contextlib
import json
import re
import shutil

import pytest
from click.testing import CliRunner
from torch import nn

from quietgrad.cli import main
from quietgrad.report import statement_of_folder, write
from quietgrad.report.authenticity import verify
from quietgrad.report.page import read_page

from .helpers import audit, edited, engine_of, trained

WORDS = {"title": "Triage", "owner": "Hospital A", "data": "visits of 2025"}


def run(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)), env={"COLUMNS": "200"})


def text_of(result):
    return " ".join(result.output.split())


def _epoch(engine, model):
    for batch in engine.batches():
        for x, y in batch:
            engine.backward(nn.functional.cross_entropy(model(x), y, reduction="none"))
        engine.step()


@pytest.fixture(scope="session")
def kept(tmp_path_factory):
    """One run, as it was after half of its epochs and at its end; nobody writes to it."""
    place = tmp_path_factory.mktemp("verified")
    book = place / "engine.jsonl"
    engine, model = engine_of(epsilon=8.0, epochs=4, accountant="rdp", ledger=book)
    metrics = []
    for epoch in range(1, 5):
        _epoch(engine, model)
        line = {"epoch": epoch, "steps": engine.steps_taken, "test_accuracy": 0.5 + epoch / 10}
        metrics.append({**line, "epsilon": engine.epsilon()})
        if epoch == 2:
            engine.save_run(place / "half", metrics=metrics, **WORDS)
    engine.save_run(place / "whole", metrics=metrics, **WORDS)
    engine.detach()
    trained().save_run(place / "other", **WORDS)
    assert run("sign", "--new-key", place / "key").exit_code == 0
    assert run("sign", "--new-key", place / "other-key").exit_code == 0
    shutil.copytree(place / "whole", place / "signed")
    assert run("sign", place / "signed", "--key", place / "key").exit_code == 0
    return place


@pytest.fixture
def folder(kept, tmp_path):
    return shutil.copytree(kept / "whole", tmp_path / "run")


@pytest.fixture(scope="session")
def head(kept):
    return statement_of_folder(kept / "whole").head


def failed(found):
    return sorted({point.name for point in found.failures})


# What is untouched.


def test_what_is_untouched_is_verified(kept, folder, head):
    for path in (folder, folder / "report.html", kept / "half", kept / "signed"):
        found = verify(path)
        assert found.ok, found.points
        assert "as a whole was replaced" in found.unseen[0]
    for path in (folder, folder / "report.html"):
        found = verify(path, head=head)
        assert (found.ok, found.head) == (True, head)
        assert not any("as a whole" in words for words in found.unseen)
    assert [path.name for path in sorted(folder.iterdir())] == [
        path.name for path in sorted((kept / "whole").iterdir())
    ]


def test_a_ledger_alone_and_a_live_report_are_verified(folder, tmp_path):
    assert verify(folder / "ledger.jsonl").verdict == "No delta stated"
    statement = trained().report(tmp_path / "live.html")
    found = verify(tmp_path / "live.html", head=statement.head)
    assert found.ok, found.points


def test_a_live_report_beside_its_ledger_is_verified_with_it(tmp_path):
    """Scripts for frameworks leave such folders: a ledger, and the page of `engine.report`."""
    statement = trained(ledger=tmp_path / "ledger.jsonl").report(tmp_path / "report.html")
    found = verify(tmp_path)
    assert found.ok
    assert found.head == statement.head
    (words,) = [point.text for point in found.points if point.name == "report"]
    assert "compared with nothing" in words
    cut(tmp_path / "ledger.jsonl", -1)
    found = verify(tmp_path)
    assert failed(found) == ["evidence", "report"]
    assert "another state of the ledger" in found.failures[-1].text


def test_weights_that_are_not_there_are_said_not_to_be_compared(folder, head):
    (folder / "model.safetensors").unlink()
    (folder / "report.html").unlink()
    found = verify(folder, head=head)
    (weights,) = (point for point in found.points if point.name == "weights")
    assert weights.passed is None
    assert found.ok


def test_a_report_that_quotes_an_audit_is_verified_with_it(folder, tmp_path):
    spent = statement_of_folder(folder).epsilons
    quoted = tmp_path / "audit.json"
    found = audit(claimed_epsilon=spent.claimed, delta=spent.delta)
    quoted.write_text(json.dumps(found))
    assert run("report", folder, "--audit", quoted).exit_code == 0
    head = read_page(folder / "report.html").statement["head"]
    assert verify(folder / "report.html", head=head).ok
    assert failed(verify(folder)) == ["report"]
    assert verify(folder, audit=found, head=head).ok
    assert run("verify", folder, "--audit", quoted, "--head", head).exit_code == 0


# What was tampered with: what it does, what is noticed without anything from elsewhere, and if it
# is noticed then with the head that was noted.


def replace(path, old, new, count=-1):
    content = path.read_bytes()
    assert old in content, old
    path.write_bytes(content.replace(old, new, count))


def cut(path, lines):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]))


def write_report(folder):
    write(statement_of_folder(folder), folder / "report.html")


def set_accuracy(folder, value):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines[-1]["test_accuracy"] = value
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def everywhere(folder, kept):
    set_accuracy(folder, 0.99)
    edited(folder / "result.json", lambda result: result["private"].update(test_accuracy=0.99))
    write_report(folder)


def other_name(folder, kept):
    edited(folder / "stated.json", lambda words: words.update(owner="Hospital B"))
    write_report(folder)


def cut_back(folder, kept):
    shutil.rmtree(folder)
    shutil.copytree(kept / "half", folder)


def less_noise_in_a_line(folder, kept):
    line = re.search(rb'"noise_multiplier":[\d.]+', (folder / "ledger.jsonl").read_bytes())[0]
    replace(folder / "ledger.jsonl", line, b'"noise_multiplier":99.0', 1)


def move_lines(change):
    def tamper(folder, kept):
        path = folder / "ledger.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)
        change(lines)
        path.write_bytes(b"".join(lines))

    return tamper


def smaller_epsilon(folder, kept):
    edited(folder / "result.json", lambda result: result["private"].update(epsilon=1.0))


def larger_epsilon(folder, kept):
    edited(folder / "result.json", lambda result: result["private"].update(epsilon=30.0))


def fewer_steps(folder, kept):
    edited(folder / "result.json", lambda result: result["private"].update(steps=19))


def smaller_bound(folder, kept):
    edited(folder / "settings.json", lambda found: found["groups"][0].update(bound=0.5))


def edit_page(old, new):
    return lambda folder, kept: replace(folder / "report.html", old, new)


def page_of_edited_json(folder, kept):
    """The JSON inside of the page, and the page made of it."""
    from quietgrad.report import Statement

    data = read_page(folder / "report.html").statement
    data["metrics"][-1]["test_accuracy"] = 0.99
    write(Statement.from_dict(data), folder / "report.html")


def append(name, content):
    def tamper(folder, kept):
        with (folder / name).open("ab") as stream:
            stream.write(content)

    return tamper


FOLDERS = {
    "a line of the ledger": (less_noise_in_a_line, ["files"]),
    "the ledger is cut": (lambda f, k: cut(f / "ledger.jsonl", 12), ["evidence", "report"]),
    "a line of the ledger is missing": (move_lines(lambda lines: lines.pop(6)), ["files"]),
    "lines of the ledger in another order": (
        move_lines(lambda lines: lines.insert(5, lines.pop(6))),
        ["files"],
    ),
    "a line of the ledger twice": (move_lines(lambda lines: lines.insert(6, lines[6])), ["files"]),
    "the ledger of another run": (
        lambda f, k: shutil.copy(k / "other" / "ledger.jsonl", f),
        ["evidence", "report"],
    ),
    "an accuracy in the metrics": (lambda f, k: set_accuracy(f, 0.99), ["evidence", "report"]),
    "an accuracy in the result": (
        lambda f, k: edited(f / "result.json", lambda r: r["private"].update(test_accuracy=0.99)),
        ["evidence", "report"],
    ),
    "a smaller epsilon in the result": (smaller_epsilon, ["evidence", "report"]),
    "a larger epsilon in the result": (larger_epsilon, ["evidence", "report"]),
    "fewer steps in the result": (fewer_steps, ["evidence", "report"]),
    "a smaller bound of the gradients": (smaller_bound, ["evidence", "report"]),
    "no settings": (lambda f, k: (f / "settings.json").unlink(), ["report"]),
    "the weights": (
        lambda f, k: shutil.copy(k / "other" / "model.safetensors", f),
        ["evidence", "weights"],
    ),
    "a byte of the weights": (
        append("model.safetensors", b"x"),
        ["evidence", "weights"],
    ),
    "a name": (
        lambda f, k: edited(f / "stated.json", lambda words: words.update(owner="B")),
        ["report"],
    ),
    "the time of the run": (
        lambda f, k: edited(f / "config.json", lambda config: config.update(begun="2020-01-01")),
        ["report"],
    ),
    "a sentence of the page": (edit_page(b"most 1", b"most 0"), ["report"]),
    "the title of the page": (edit_page(b"<h1>Triage", b"<h1>Other"), ["report"]),
    "a hidden part of the page": (edit_page(b"</main>", b"<!-- x --></main>"), ["report"]),
    "the statement in the page": (edit_page(b'"Hospital A"', b'"Hospital B"'), ["report"]),
    "the page and its statement": (page_of_edited_json, ["report"]),
    "the page of another run": (
        lambda f, k: shutil.copy(k / "other" / "report.html", f),
        ["report"],
    ),
    "the page is cut off": (
        lambda f, k: (f / "report.html").write_bytes((f / "report.html").read_bytes()[:-50]),
        ["report"],
    ),
    "cut back to half of the steps": (cut_back, []),
    "an accuracy everywhere": (everywhere, []),
    "a name everywhere": (other_name, []),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_what_was_changed_in_a_folder_is_noticed(folder, kept, head, name):
    tamper, noticed = FOLDERS[name]
    tamper(folder, kept)
    found = verify(folder)
    assert failed(found) == noticed
    if not noticed:
        assert "cut back to fewer steps, with other accuracies or other names" in found.unseen[0]
    # With the head everything is noticed, at least as much.
    again = verify(folder, head=head)
    assert not again.ok
    if not noticed:
        assert failed(again) == ["head"]
    result = run("verify", folder, "--head", head)
    assert result.exit_code == 1
    assert f"{folder} is NOT verified: " in text_of(result)
    assert "Traceback" not in result.output


@pytest.mark.parametrize("name", FOLDERS)
def test_what_was_changed_in_a_signed_folder_is_noticed(kept, tmp_path, name):
    place = shutil.copytree(kept / "signed", tmp_path / "run")
    assert run("verify", place, "--public-key", kept / "key.pub").exit_code == 0
    FOLDERS[name][0](place, kept)
    result = run("verify", place, "--public-key", kept / "key.pub")
    assert result.exit_code == 1
    assert "NOT verified" in result.output


# A report that was received alone.


def rewritten(change):
    """The statement in the page is edited, and the page is made of it, with a new head or not."""

    def tamper(path):
        from quietgrad.report import Statement
        from quietgrad.report.evidence import evidence_of

        data = read_page(path).statement
        change(data)
        with_new_head = dict(data)
        with contextlib.suppress(Exception):  # of what is no evidence any more
            with_new_head["head"] = evidence_of(data).head
        write(Statement.from_dict(with_new_head), path)

    return tamper


def fewer_events(data):
    data["evidence"]["ledger"]["events"][0]["steps"] = 2


def larger_noise(data):
    data["evidence"]["ledger"]["events"][0]["noise_multiplier"] = 50.0


PAGES = {
    "a figure of the page": (lambda p: replace(p, b"<td>20 (all", b"<td>2 (all"), ["page"]),
    "a style that hides the warnings": (
        lambda p: replace(p, b"</style>", b"main{display:none}</style>"),
        ["page"],
    ),
    "epsilon in the statement": (
        rewritten(lambda data: data["epsilons"].update(claimed=0.1)),
        ["statement"],
    ),
    "the verdict": (rewritten(lambda d: d["verdict"].update(sentence="Safe.")), ["statement"]),
    "the steps in the evidence": (rewritten(fewer_events), ["evidence", "statement"]),
    "the noise in the evidence": (rewritten(larger_noise), ["evidence", "statement"]),
    "an accuracy": (
        rewritten(lambda data: data["metrics"][-1].update(test_accuracy=0.99)),
        ["evidence", "statement"],
    ),
    "the version": (
        rewritten(lambda data: data["evidence"]["versions"].update(quietgrad="9.9")),
        ["statement"],
    ),
    "the version and the verdict": (
        rewritten(
            lambda data: (
                data["evidence"]["versions"].update(quietgrad="9.9"),
                data["verdict"].update(sentence="Safe."),
            )
        ),
        ["statement"],
    ),
    "no evidence": (rewritten(lambda data: data.update(evidence=None)), ["statement"]),
    "another owner": (
        rewritten(lambda data: data["stated"].update(owner="B")),
        ["statement"],
    ),
}


def _said(**change):
    """Words where the program writes facts, and all that follows from them."""

    def tamper(path):
        from quietgrad.report import Statement
        from quietgrad.report.assess import statement_of
        from quietgrad.report.evidence import evidence_of

        data = read_page(path).statement
        for name, value in change.items():
            place = data if name in data else data["evidence"]
            place[name] = {**place[name], **value} if isinstance(value, dict) else value
        again = Statement.from_dict(data)
        with contextlib.suppress(Exception):  # of what is refused
            again = statement_of(evidence_of(data), made_at=data["made_at"])
        write(again, path)

    return tamper


SAID = {
    "a time": _said(made_at="2026-11-20T00:00 by the officer"),
    "no time": _said(made_at="certified"),
    "another zone": _said(made_at="2026-11-20T00:00:00+09:00"),
    "a version": _said(versions={"torch": "verified by NIST"}),
    "a program": _said(versions={"approved by": "1.0"}),
    "a file": _said(files={"approval.pdf": "granted"}),
    "a notice": _said(notices=["The officer approved this run."]),
}


@pytest.mark.parametrize("name", SAID)
def test_no_words_are_put_where_the_program_states_facts(folder, head, name):
    path = folder / "report.html"
    SAID[name](path)
    found = verify(path, head=head)
    assert failed(found) == ["head" if name == "a notice" else "statement"], found.points


@pytest.mark.parametrize("name", PAGES)
def test_what_was_changed_in_a_report_is_noticed(kept, folder, head, name):
    path = folder / "report.html"
    tamper, noticed = PAGES[name]
    tamper(path)
    found = verify(path)
    assert failed(found) == noticed, found.points
    assert run("verify", path, "--head", head).exit_code == 1


def test_a_report_that_was_replaced_as_a_whole_is_noticed_with_the_head_only(kept, folder, head):
    path = shutil.copy(kept / "half" / "report.html", folder / "report.html")
    assert verify(path).ok
    assert failed(verify(path, head=head)) == ["head"]
    signed = run("verify", path, "--public-key", kept / "key.pub")
    assert signed.exit_code == 1
    assert "the report is not signed" in text_of(signed)


# Signatures.


def test_a_signature_is_by_one_key_and_covers_every_byte(kept, tmp_path):
    path = tmp_path / "report.html"
    shutil.copy(kept / "signed" / "report.html", path)
    assert run("verify", path, "--public-key", kept / "key.pub").exit_code == 0
    unknown = run("verify", path)
    assert unknown.exit_code == 0
    assert "give --public-key to see whose it is" in text_of(unknown)
    assert "as a whole was replaced" in text_of(unknown)
    other = run("verify", path, "--public-key", kept / "other-key.pub")
    assert other.exit_code == 1
    assert "by another key" in text_of(other)
    content = path.read_bytes()
    for position in (500, len(content) // 2, len(content) - 300, len(content) - 20):
        changed = bytearray(content)
        changed[position] ^= 1
        path.write_bytes(changed)
        assert run("verify", path, "--public-key", kept / "key.pub").exit_code == 1, position


def test_a_report_is_signed_when_it_is_written_and_signed_again(kept, folder):
    assert run("report", folder, "--sign", kept / "key").exit_code == 0
    assert run("verify", folder, "--public-key", kept / "key.pub").exit_code == 0
    refused = run("report", folder)
    assert refused.exit_code == 2
    assert "it is signed, and the new one would not be" in text_of(refused)
    assert run("sign", folder, "--key", kept / "other-key").exit_code == 0
    assert (folder / "report.html").read_bytes().count(b"quietgrad signature") == 1
    assert run("verify", folder, "--public-key", kept / "other-key.pub").exit_code == 0


def test_a_signed_report_of_another_version_is_believed(kept, folder):
    from quietgrad.report import Statement

    path = folder / "report.html"
    data = read_page(path).statement
    data["evidence"]["versions"]["quietgrad"] = "9.9"
    data["verdict"]["sentence"] = "In other words."
    write(Statement.from_dict(data), path)
    assert failed(verify(path)) == ["statement"]
    assert run("sign", path, "--key", kept / "key").exit_code == 0
    assert run("verify", path, "--public-key", kept / "key.pub").exit_code == 0


NO_KEYS = {
    "a public key to sign with": (["sign", "{run}", "--key", "{kept}/key.pub"], "is no key"),
    "a key that is not there": (["sign", "{run}", "--key", "nowhere"], "cannot be read"),
    "a private key to verify with": (
        ["verify", "{run}", "--public-key", "{kept}/key"],
        "expected a public key",
    ),
    "a page to verify with": (
        ["verify", "{run}", "--public-key", "{run}/report.html"],
        "expected a public key",
    ),
    "nothing to sign": (["sign"], "expected FILE_OR_DIR and --key"),
    "nothing to sign with": (["sign", "{run}"], "expected FILE_OR_DIR and --key"),
    "a key that would be overwritten": (["sign", "--new-key", "{kept}/key"], "not overwritten"),
    "what is no report": (["sign", "{run}/config.json", "--key", "{kept}/key"], "is no report"),
    "no head": (["verify", "{run}", "--head", "abc"], "expected the 64 hexadecimal digits"),
}


@pytest.mark.parametrize("name", NO_KEYS)
def test_what_cannot_be_used_is_refused(kept, folder, name):
    arguments, message = NO_KEYS[name]
    before = (folder / "report.html").read_bytes()
    result = run(*(each.format(run=folder, kept=kept) for each in arguments))
    assert result.exit_code == 2
    assert message in text_of(result)
    assert "Traceback" not in result.output
    assert (folder / "report.html").read_bytes() == before


def test_only_its_owner_can_read_a_private_key(kept):
    assert (kept / "key").stat().st_mode & 0o777 == 0o600


# What is no report, or was made to look like one.


def _deep(page):
    start = page.index(b'id="statement">\n') + 16
    return page[:start] + b"[" * 100_000 + page[page.index(b"\n</script>", start) :]


def _statement(page, change):
    start = page.index(b'id="statement">\n') + 16
    end = page.index(b"\n</script>", start)
    return page[:start] + change(page[start:end]) + page[end:]


NO_REPORTS = {
    "empty": (lambda page: b"", 2, "is no report"),
    "another page": (lambda page: b"<!DOCTYPE html><title>x</title>", 2, "is no report"),
    "binary": (lambda page: bytes(range(256)) * 99, 2, "begins with binary data"),
    "a picture": (lambda page: b"\x89PNG\r\n\x1a\n" + page, 2, "is no report"),
    "huge": (lambda page: page + b" " * 2**26, 2, "MiB: expected a report"),
    "the beginning only": (lambda page: page[:2000], 1, "its end is missing"),
    "without its end": (lambda page: page[:-3], 1, "its end is missing"),
    "more after its end": (lambda page: page + b"<p>and</p>", 1, "something follows it"),
    "zero bytes": (lambda page: page.replace(b"</h1>", b"\0</h1>"), 1, "zero bytes"),
    "two statements": (
        lambda page: page.replace(
            b"<main>", b'<script type="application/json" id="statement">\n{}\n</script><main>'
        ),
        1,
        "it has 2 statements",
    ),
    "no statement": (lambda page: page.replace(b'id="statement"', b'id="other"'), 1, "0 state"),
    "a statement hidden in an attribute": (
        lambda page: page.replace(b"<main>", b"<main title='id=\"statement\"'>"),
        1,
        "it has 1 statements",
    ),
    "markup in the statement": (
        lambda page: _statement(page, lambda s: s.replace(b"Triage", b"<!--")),
        1,
        "does not end as it should",
    ),
    "no JSON": (lambda page: _statement(page, lambda s: b"{"), 1, "is not JSON"),
    "a list": (lambda page: _statement(page, lambda s: b"[]"), 1, "no JSON object"),
    "a deep list": (_deep, 1, "is not JSON"),
    "a name twice": (
        lambda page: _statement(page, lambda s: b'{"format": 3,' + s.lstrip(b" \n{")),
        1,
        "'format' stands in it twice",
    ),
    "not a number": (
        lambda page: _statement(
            page, lambda s: s.replace(b'"detection": ', b'"detection": NaN, "x": ')
        ),
        1,
        "NaN is no number",
    ),
    "a number of many digits": (
        lambda page: _statement(
            page, lambda s: s.replace(b'"format": 3', b'"format": ' + b"9" * 5000)
        ),
        1,
        "is not JSON",
    ),
    "another encoding": (
        lambda page: _statement(page, lambda s: s.replace(b"Triage", b"\xff\xfe")),
        1,
        "is not JSON",
    ),
    "another kind of statement": (
        lambda page: _statement(page, lambda s: b'{"format": 3, "evidence": {"ledger": 3}}'),
        1,
        "the evidence in the statement is not valid",
    ),
    "evidence that is a list": (
        lambda page: _statement(page, lambda s: b'{"format": 3, "evidence": [], "settings": 1}'),
        1,
        "the evidence in the statement is not valid",
    ),
    "a future format": (
        lambda page: _statement(page, lambda s: b'{"format": 4}'),
        1,
        "it is of format '4'",
    ),
}


@pytest.mark.parametrize("name", NO_REPORTS)
def test_what_is_no_whole_report_is_refused_in_words(kept, tmp_path, name):
    change, code, message = NO_REPORTS[name]
    path = tmp_path / "received.html"
    path.write_bytes(change((kept / "whole" / "report.html").read_bytes()))
    result = run("verify", path)
    assert result.exit_code == code, result.output
    assert message in text_of(result)
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_what_a_terminal_would_obey_is_not_printed(kept, folder):
    path = folder / "report.html"
    replace(path, b"<h1>Triage", "<h1>\x1b[31mred\u202e".encode())
    result = run("verify", path)
    assert result.exit_code == 1
    assert "\x1b" not in result.output
    assert "\u202e" not in result.output


def test_nothing_there_is_refused(tmp_path):
    for path in (tmp_path / "nowhere", tmp_path):
        result = run("verify", path)
        assert result.exit_code == 2, result.output
        assert "expected" in result.output


def test_json_says_the_same(folder, head):
    found = json.loads(run("verify", folder, "--head", head, "--json").output)
    assert (found["ok"], found["head"]) == (True, head)
    assert {point["name"] for point in found["points"]} >= {"files", "evidence", "weights", "head"}


@pytest.mark.filterwarnings("ignore:seed=:UserWarning")
def test_a_run_without_a_guarantee_is_no_good_even_if_nothing_was_changed(tmp_path):
    trained(seed=1).save_run(tmp_path / "run")
    result = run("verify", tmp_path / "run")
    assert result.exit_code == 1
    assert (
        "agrees with its evidence, which gives no guarantee: THIS RUN PROTECTS NOBODY"
        in text_of(result)
    )
