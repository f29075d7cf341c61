"""Templates are code from a model's files: they reach nothing and end in time (case 42)."""

import pytest

from enginebay.errors import InvalidRequest, ModelError
from enginebay.flow import ChatPrompt

USER = {"role": "user", "content": "hi"}
ESCAPES = [
    "{{ cycler.__init__.__globals__.os.system('touch MARKER') }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__.__base__.__subclasses__() }}",
    "{{ raise_exception.__globals__['json'] }}",
    "{{ strftime_now.__func__.__globals__['json'].codecs.open('MARKER', 'w') }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ (messages | attr('__class__')).mro() }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(cycler) }}",
    "{{ {'f': '{0.__class__.__mro__}'.format}.f(1) }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 'x' %}",
    "{% set ns = namespace(_a=1) %}",
    "{% include 'MARKER' %}",
    "{{ lipsum.__globals__ }}",
]
MUTATIONS = [
    "{{ messages.append({'role': 'system', 'content': 'x'}) }}",
    "{{ messages[0].update(content='x') }}",
    "{% set _ = messages.pop() %}",
    "{{ messages[0].clear() }}",
]
DOUBLING = (
    "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = NEW %}{% endfor %}"
)
COSTLY = [
    "{% for i in range(10 ** 9) %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    DOUBLING.replace("NEW", "ns.x ~ ns.x"),
    DOUBLING.replace("NEW", "ns.x + ns.x"),
    DOUBLING.replace("NEW", "[ns.x] + [ns.x]") + "{{ ns.x }}",
    DOUBLING.replace("NEW", "[ns.x, ns.x]") + "{{ ns.x | string }}",
    DOUBLING.replace("NEW", "(ns.x, ns.x)") + "{{ ns.x | tojson }}",
    DOUBLING.replace("NEW", "{'a': ns.x, 'b': ns.x}") + "{{ 'x' ~ ns.x }}",
    DOUBLING.replace("NEW", "[ns.x, ns.x]") + "{{ '%s' % ns.x }}",
    DOUBLING.replace("NEW", "[ns.x, ns.x]") + "{{ '{}'.format(ns.x) }}",
    DOUBLING.replace("NEW", "[ns.x, ns.x]") + "{{ ns.x | join('x') }}",
    "{% for i in range(999) %}{{ 'x' * 1000000 }}{% endfor %}",
    "{% set b %}{% for i in range(999) %}{{ 'x' * 1000000 }}{% endfor %}{% endset %}",
    "{{ range(99999) | map('replace', '1', 'y' * 9000000) | list }}",
    "{{ 'x' * 10 ** 9 }}",
    "{{ 10 ** 9 * [1] }}",
    "{{ 9 ** (9 ** 9) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%.1000000000f' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '{:>1000000000}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=1000000000) }}",
    "{{ '{:{w}}'.format_map({'w': 1000000000}) }}",
    "{{ 'x' | center(1000000000) }}",
    "{{ 'x' | indent(1000000000, true) }}",
    "{{ 'x'.ljust(1000000000) }}",
    "{{ 'x'.zfill(1000000000) }}",
    "{{ (1).to_bytes(1000000000, 'big') }}",
    "{{ 1 | round(1000000000, 'ceil') }}",
    "{{ ('x' * 1000000).replace('x', 'y' * 1000000) }}",
    "{{ ('x' * 1000000) | replace('x', 'y' * 1000000) }}",
    "{{ ('x' * 1000000).join(range(9999) | map('string') | list) }}",
    "{{ ['x' * 1000000] * 9999 }}",
    "{{ ''.join(['x' * 1000000] * 9999) }}",
    "{{ [1] | tojson(indent=1000000000) }}",
    "{{ strftime_now('%1000000000Y') }}",
    "{{ lipsum(n=1000000000) }}",
]
BOUND = r"messages: (it |Range too big|tojson takes no|strftime_now takes no)|nests|lipsum"
"""How a template that went over a bound is refused: not for want of memory."""
BROKEN = [
    ("{{ nothing.at.all }}", "'nothing' is undefined"),
    ("{{ 'a' + 1 }}", "can only concatenate"),
    ("{{ 1 / 0 }}", "division by zero"),
    ("{{ messages | nofilter }}", None),
    ("{{ messages[0]['content']['x']['y'] }}", "has no attribute 'x'"),
    ("{{ raise_exception('Only user turns, please!') }}", "Only user turns, please!"),
]


def encode(frontend):
    return frontend.encode(ChatPrompt(messages=(USER,)))


@pytest.mark.parametrize("source", ESCAPES)
def test_no_way_out(source, make_chat, tmp_path):
    """Python's internals are out of reach: a 400, and no file appears."""
    marker = tmp_path / "marker"
    with pytest.raises(InvalidRequest, match="chat template") as caught:
        encode(make_chat(source.replace("MARKER", str(marker))))
    assert not marker.exists()
    assert caught.value.detail.param == "messages"


@pytest.mark.parametrize("source", MUTATIONS)
def test_messages_stay_as_they_are(source, make_chat):
    """A template can't change the messages it is given."""
    messages = (dict(USER),)
    with pytest.raises(InvalidRequest, match="unsafe"):
        make_chat(source).encode(ChatPrompt(messages=messages))
    assert messages == (USER,)


def test_next_request_has_a_budget_of_its_own(make_chat):
    """A rendering that went over a bound leaves the next one untouched."""
    source = "{% if messages[0].content == 'x' %}{{ 'x' * 10 ** 9 }}{% endif %}fine"
    frontend = make_chat(source)
    with pytest.raises(InvalidRequest, match=BOUND):
        frontend.encode(ChatPrompt(messages=({"role": "user", "content": "x"},)))
    assert frontend.render(ChatPrompt(messages=(USER,))).text == "fine"


@pytest.mark.parametrize("source", COSTLY)
def test_cost_is_bounded(source, make_chat):
    """What would take hours or gigabytes is stopped."""
    with pytest.raises(InvalidRequest, match=BOUND):
        encode(make_chat(source, render_seconds=0.05))


def test_ordinary_work_is_not_stopped(make_chat):
    """Long conversations and texts, and formats with large numbers, are no cost."""
    source = (
        "{% set ns = namespace(n=0) %}{% for m in messages %}"
        "{% set ns.n = ns.n + m.content | length %}{{ m.content ~ '\n' }}{% endfor %}"
        "{{ '%s %d' % ('n', ns.n) }} {{ '{} {:>9}'.format(2024, 1) }}"
        "{{ messages[0].content.replace('x', 'yy') | length }}{{ 1738281600 | string }}"
    )
    messages = ({"role": "user", "content": "x" * 100},) * 5_000
    text = make_chat(source).render(ChatPrompt(messages=messages)).text
    assert text.endswith("n 500000 2024         12001738281600")


@pytest.mark.parametrize(("source", "sentence"), BROKEN)
def test_errors_inside_a_template(source, sentence, make_chat):
    """A template that fails on these messages is a 400 in plain words (case 37)."""
    if sentence is None:
        with pytest.raises(ModelError, match="not valid Jinja, line 1"):
            make_chat(source)
        return
    with pytest.raises(InvalidRequest) as caught:
        encode(make_chat(source))
    message = caught.value.detail.message
    assert sentence in message
    assert not any(word in message for word in ("Traceback", ".py", "Error:"))


def test_error_messages_are_short(make_chat):
    """A template can't answer with a message of any size."""
    with pytest.raises(InvalidRequest) as caught:
        encode(make_chat("{{ raise_exception('x' * 100000) }}"))
    assert len(caught.value.detail.message) <= 500
