"""The chain: what it accepts at assembly, how it reads fields, how it draws a row."""

import math

import pytest
import torch

from enginebay.candidates import Candidates
from enginebay.errors import StackError
from enginebay.flow import SamplingParams
from enginebay.hookspecs.sampler import Field, RowView
from enginebay.sampling import Chain, RowError, TransformError

VOCAB = 6


class Base:
    """A transform with at most one field, active when that is not neutral."""

    fields: tuple[Field, ...] = ()

    def parse(self, name, value, vocab_size):
        return value

    def active(self, params, sampling):
        return any(params[field.name] != field.neutral for field in self.fields)


class Ban(Base):
    """Bans one token id."""

    fields = (Field(name="ban", type="integer", neutral=-1, minimum=-1, maximum=9),)

    def edit(self, row, view):
        row[view.params["ban"]] = -math.inf


class Keep(Base):
    """Keeps so many."""

    fields = (Field(name="keep", type="integer", neutral=0, minimum=0),)

    def greedy(self, params):
        return params["keep"] == 1

    def shape(self, candidates, view):
        return candidates.best(view.params["keep"])


class Last(Base):
    """Draws the last candidate."""

    def active(self, params, sampling):
        return True

    def draw(self, candidates, view):
        return int(candidates.token_ids()[-1])


def _chain(*members) -> Chain:
    return Chain(list(members) or [("ban", Ban()), ("keep", Keep()), ("last", Last())], VOCAB)


def _view(chain: Chain, **asked) -> RowView:
    sampling = SamplingParams(**asked)
    return RowView(
        params=chain.parse(sampling),
        sampling=sampling,
        prompt_ids=(1,),
        output_ids=(),
        position=1,
        index=0,
        seed=0,
        end_ids=frozenset(),
    )


class EditAndShape(Ban, Keep):
    """Two stages in one."""


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ((), "the chain is empty"),
        ((("keep", Keep()),), "must end with a draw; the last is 'keep'"),
        ((("last", Last()), ("keep", Keep())), "'keep' .shape. stands after the draw 'last'"),
        ((("a", Last()), ("b", Last())), "'b' .draw. stands after the draw 'a'"),
        ((("keep", Keep()), ("ban", Ban()), ("l", Last())), "'ban' .edit. stands after 'keep'"),
        ((("both", EditAndShape()), ("l", Last())), "'both' .* it is edit and shape"),
        ((("none", Base()), ("l", Last())), "'none' .* it is none of them"),
        ((("ban", Ban()), ("ban2", Ban()), ("l", Last())), "'ban' and 'ban2' both own"),
    ],
)
def test_a_wrong_chain_stops_the_start(members, told):
    """Stage order, the one draw, and each field's one owner, by the plugins' names."""
    with pytest.raises(StackError, match=told):
        Chain(list(members), VOCAB)


def test_fields_name_their_owner():
    """What a stack accepts, and who takes it."""
    fields = _chain().fields
    assert {name: plugin for name, (plugin, _) in fields.items()} == {"ban": "ban", "keep": "keep"}
    assert fields["ban"][1].maximum == 9


ROW = torch.tensor([0.0, 3.0, 1.0, 3.0, 2.0, -1.0])


def test_only_active_members_run():
    """Neutral rows go straight to the draw; the row itself is never changed."""
    chain = _chain()
    row = ROW.clone()
    assert chain.draw(row, _view(chain)).token_id == 5
    assert chain.draw(row, _view(chain, keep=3)).token_id == 4
    assert chain.draw(row, _view(chain, keep=2, ban=3)).token_id == 4
    assert torch.equal(row, ROW)


def test_a_shape_that_keeps_the_best_is_the_argmax():
    """Greedy rows never reach the draw; of equal logits the lowest id is taken."""
    chain = _chain()
    assert chain.draw(ROW, _view(chain, keep=1)).token_id == 1
    assert chain.draw(ROW, _view(chain, keep=1, ban=1)).token_id == 3


def test_greedy_means_no_edit_and_a_best_only_shape_first():
    """Only such requests may be drawn many at once."""
    chain = _chain()

    def greedy(**asked):
        view = _view(chain, **asked)
        return chain.greedy(view.params, view.sampling)

    assert greedy(keep=1)
    assert greedy(keep=1, logprobs=2)
    assert not greedy()
    assert not greedy(keep=2)
    assert not greedy(keep=1, ban=0)
    assert not greedy(keep=1, logprobs=0, logprobs_mode="processed")


def test_a_best_only_shape_after_another_is_not_greedy():
    """What stands before it could take the best away."""

    class Worst(Keep):
        fields = (Field(name="worst", type="integer", neutral=0),)
        greedy = None

        def shape(self, candidates, view):
            return Candidates(candidates.logits[-1:], candidates.token_ids()[-1:], ordered=True)

    chain = _chain(("worst", Worst()), ("keep", Keep()), ("last", Last()))
    view = _view(chain, worst=1, keep=1)
    assert not chain.greedy(view.params, view.sampling)
    assert chain.draw(ROW, view).token_id == 5


def test_many_greedy_rows_at_once_equal_one_by_one():
    """The batched form gives what single draws give, faults included."""
    chain = _chain()
    rows = torch.stack([ROW, ROW.flip(0), torch.full((VOCAB,), -math.inf), ROW * math.nan, ROW * 0])
    one, two, banned, broken, flat = chain.draw_greedy(rows)
    assert (one, two, flat) == (1, 2, 0)
    assert isinstance(banned, RowError)
    assert isinstance(broken, RowError)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_the_rows_error(bad):
    """A row with NaN or infinity ends with an error, not with token 0 (case 66)."""
    chain = _chain()
    row = ROW.clone()
    row[4] = bad
    for asked in ({}, {"keep": 1}, {"ban": 0}):
        with pytest.raises(RowError, match="not finite"):
            chain.draw(row, _view(chain, **asked))


def test_a_row_with_every_token_banned_names_who_banned():
    """The error says which transforms left nothing."""

    class BanAll(Ban):
        def edit(self, row, view):
            row.fill_(-math.inf)

    chain = _chain(("ban-all", BanAll()), ("last", Last()))
    with pytest.raises(RowError, match="every token is banned by ban-all"):
        chain.draw(ROW, _view(chain, ban=1))
    with pytest.raises(RowError, match="every token is banned by the model"):
        chain.draw(torch.full((VOCAB,), -math.inf), _view(chain))


def _raise(*arguments):
    raise RuntimeError("secret /path/file.py")


@pytest.mark.parametrize(
    ("broken", "method"), [("ban", "edit"), ("keep", "shape"), ("keep", "greedy"), ("last", "draw")]
)
def test_a_member_that_raises_is_named(broken, method):
    """The plugin is named to the caller, its exception kept for the log."""
    members = {"ban": Ban(), "keep": Keep(), "last": Last()}
    setattr(members[broken], method, _raise)
    chain = _chain(*members.items())
    with pytest.raises(TransformError, match=f"'{broken}'") as caught:
        chain.draw(ROW, _view(chain, ban=1, keep=2))
    assert caught.value.plugin == broken
    assert str(caught.value.cause) == "secret /path/file.py"
    assert "secret" not in str(caught.value)


def test_a_member_whose_active_raises_is_named():
    """Also when asked whether a request is greedy."""
    keep = Keep()
    keep.active = _raise
    chain = _chain(("keep", keep), ("last", Last()))
    view = _view(chain)
    with pytest.raises(TransformError, match="'keep'"):
        chain.greedy(view.params, view.sampling)


def test_a_shape_that_leaves_nothing_and_a_draw_from_nowhere_are_named():
    """A broken contract is the plugin's fault, not a token."""

    class Empty(Keep):
        def shape(self, candidates, view):
            return candidates.where(candidates.logits > math.inf)

    class Far(Last):
        def draw(self, candidates, view):
            return VOCAB

    chain = _chain(("empty", Empty()), ("far", Far()))
    with pytest.raises(TransformError, match="'empty'"):
        chain.draw(ROW, _view(chain, keep=2))
    with pytest.raises(TransformError, match="'far'"):
        chain.draw(ROW, _view(chain))


def test_what_was_drawn_from_is_told_when_asked():
    """Processed log-probabilities need the candidates; others do not pay for them."""
    chain = _chain()
    assert chain.draw(ROW, _view(chain, keep=3, logprobs=2)).candidates is None
    asked = {"logprobs": 2, "logprobs_mode": "processed"}
    left = chain.draw(ROW, _view(chain, keep=3, **asked)).candidates
    assert left.token_ids().tolist() == [1, 3, 4]
    left = chain.draw(ROW, _view(chain, keep=1, **asked)).candidates
    assert left.token_ids().tolist() == [1]
