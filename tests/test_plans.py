"""Plans: what several commands for one folder asked for."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from fspool.checks import UserError
from fspool.lab.plans import write_plan
from fspool.storage import read_json, write_json

PLAN = {"experiment": "e", "preset": "p", "seeds": 2, "cells": ["a", "b"], "options": {"": 2}}
OTHER = PLAN | {"seeds": 3, "cells": ["b", "c"], "options": {"--only c": 3}}


def written(folder, *plans, overwrite=False):
    """The plan that is there after these were written, one after another."""
    for plan in plans:
        write_plan(folder, plan, overwrite)
    return read_json(folder / "plan.json")


def test_a_plan_alone_is_written_as_it_is(tmp_path):
    assert written(tmp_path / "new" / "folder", PLAN) == PLAN


def test_plans_for_one_folder_are_joined(tmp_path):
    found = written(tmp_path, PLAN, OTHER, PLAN | {"seeds": 1, "options": {"": 1}})
    options = {"": 2, "--only c": 3}
    assert found == PLAN | {
        "seeds": 3,
        "cells": ["a", "b", "c"],
        "options": options,
        "runs": {"a": 2},
    }


def test_options_whose_runs_were_all_overwritten_are_forgotten(tmp_path):
    again = PLAN | {"options": {"--set steps=3": 1}}
    assert written(tmp_path, PLAN, again, overwrite=True)["options"] == again["options"]
    kept = written(tmp_path, OTHER, overwrite=True)["options"]  # cell a is as it was
    assert kept == again["options"] | OTHER["options"]


@pytest.mark.parametrize(
    "before", [{}, {"cells": 3}, PLAN | {"options": []}, PLAN | {"cells": []}], ids=str
)
def test_a_plan_of_another_form_is_replaced(tmp_path, before):
    write_json(tmp_path / "plan.json", before)
    assert written(tmp_path, PLAN) == PLAN


@pytest.mark.parametrize("other", [{"preset": "q"}, {"experiment": "f"}], ids=str)
def test_a_plan_of_another_preset_is_kept(tmp_path, other):
    """A report of both would say of one of them what is missing, and how it was made."""
    other = PLAN | other
    with pytest.raises(UserError, match="is for e --preset p, and this is .*; choose another"):
        written(tmp_path, PLAN, other)
    assert written(tmp_path) == PLAN
    assert written(tmp_path, other, overwrite=True) == other


def test_each_cell_has_the_runs_that_were_asked_for(tmp_path):
    few = PLAN | {"cells": ["c", "a"], "seeds": 1, "options": {"--only c": 1}}
    many = few | {"seeds": 5, "options": {"--only c": 5}, "cells": ["c"]}
    assert written(tmp_path, PLAN, few)["runs"] == {"c": 1}
    found = written(tmp_path, many)
    assert (found["seeds"], found["runs"]) == (5, {"a": 2, "b": 2})


def test_a_damaged_plan_is_set_aside_with_a_word(tmp_path):
    written(tmp_path, OTHER)
    (tmp_path / "plan.json").write_text("{")
    said = []
    write_plan(tmp_path, PLAN, False, said.append)
    assert len(said) == 1 and said[0].endswith("it is now plan.json.damaged-0.")
    assert read_json(tmp_path / "plan.json") == PLAN


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="^out is .*, where nothing can be written: .*[.]$"):
        write_plan(tmp_path / "file", PLAN, False)


def test_plans_of_several_commands_for_one_folder_are_joined(tmp_path):
    """At once, as on several machines: none may overwrite what another one has just written."""
    plans = [
        {"experiment": "e", "preset": "p", "seeds": 1, "cells": [f"c{i}"], "options": {f"o{i}": 1}}
        for i in range(24)
    ]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda plan: write_plan(tmp_path, plan, False), plans))
    found = read_json(tmp_path / "plan.json")
    assert sorted(found["cells"]) == sorted(f"c{i}" for i in range(24))
    assert len(found["options"]) == 24
