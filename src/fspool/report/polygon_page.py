"""What the page has to say about polygons: the responsibility problem, to be turned by hand."""

from __future__ import annotations

from . import figures as draw
from .parts import Parts, legend, panels, section
from .records import Record
from .sweeps import TRAINED, packed_sweeps, sizes_of

INTRODUCTION = """
<p class="lead">Turn a square by 90° and it is the same set of four corners. A network that puts
out a <em>list</em> of four points must decide which output draws which corner. While the square
turns, each output follows its corner, but after a quarter turn every output would be one corner
further. So somewhere all of them must go back to a neighbour's place at once. A network cannot
jump: it moves very fast there, and is wrong meanwhile. This is the <strong>responsibility
problem</strong>. FSPool remembers how it sorted its input, and FSUnpool undoes that sort: every
output stands where its input stood, and nothing has to jump.</p>
"""

FIGURE = """
<section class="turn" id="turn" aria-label="Turn the polygon">
 <div class="controls">
  <button type="button" id="play" aria-pressed="false">▶ Play</button>
  <label class="angle"><span>Angle <output id="angle" for="slider">0.0°</output></span>
   <input type="range" id="slider" min="0" max="719" value="0" step="1"></label>
  <label>Points <select id="size"></select></label>
  <label>Baseline <select id="baseline"></select></label>
 </div>
 <div class="stages">
  <figure class="stage" id="left"></figure>
  <figure class="stage" id="right"></figure>
 </div>
 <p class="hint">Rings are the true corners. Numbered dots are the outputs, each with its way over
 the last 10°. The strip shows how fast the outputs move: 1 is the speed of a corner, a peak is a
 jump. Click into it to go there. Both models are those of seed 0.</p>
 <noscript><p>This figure needs JavaScript; all that follows does not.</p></noscript>
</section>
"""

ABSENT = """
<p class="hint">The figure that turns needs the run folders of FSPool and of a baseline with at most
16 points; they are not part of this report.</p>
"""


def parts(records: dict[str, Record]) -> Parts:
    packed = packed_sweeps(records)
    return Parts(opening(packed), figures(records), packed)


def opening(packed: dict | None) -> str:
    return INTRODUCTION + (FIGURE if packed else ABSENT)


def figures(records: dict[str, Record]) -> str:
    parts = [
        section(
            "The jump, for four points",
            "Where each output stands while the square turns once; one colour is one output, as "
            "above. An output that follows its corner draws a sine. A list has to go back "
            "somewhere in every quarter turn.",
            draw.slots_by_angle(records, 4),
        ),
        section(
            "Two points: a jump that cannot be avoided",
            "Turned by 180° two opposite points are the same set. A continuous list cannot follow: "
            "at some angle its error, the assignment loss, is at least 50 hundredths (dashed).",
            draw.slots_by_angle(records, 2, error=True),
        ),
        section(
            "Training",
            "Mean over seeds, with a band from the best to the worst seed. Each model in the loss "
            "that it is trained on, so the curves of different models are not the same quantity.",
            draw.loss_curves(records),
            legend({label: f"var(--{model})" for label, model in TRAINED.items()}),
        ),
        _reconstructions(records),
    ]
    if "fspool-n16" in records:
        parts.append(
            section(
                "Learnt weight functions, 16 points",
                "How much an element counts, from the largest (left) to the smallest (right), for "
                "each feature of seed 0. The thin lines are 0. All are drawn to one scale. Before "
                "training they are random numbers.",
                draw.weight_functions(records["fspool-n16"]),
            )
        )
    return "".join(parts)


def _reconstructions(records: dict[str, Record]) -> str:
    groups = ""
    for n in sizes_of(records):
        if shown := draw.reconstructions(records, n):
            groups += f"<h3>{n} points</h3>{panels(shown)}"
    if not groups:
        return ""
    return (
        "<section><h2>Reconstructions</h2><p>The first six test sets of seed 0, not chosen. Rings: "
        f"what went in. Dots: what came out.</p>{groups}</section>"
    )
