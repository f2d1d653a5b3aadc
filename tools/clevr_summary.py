"""Counts of CLEVR's scenes for the docs: ``python tools/clevr_summary.py SCENES.json OUT.json``.

Only counts are written. With them the docs are built where the original is not.
"""

import json
import sys
from pathlib import Path

from fspool.data.clevr.scene_files import read_scenes
from fspool.data.clevr.summary import summarise

if __name__ == "__main__":
    source, out = map(Path, sys.argv[1:])
    scenes = read_scenes(source)
    summary = {"scenes": len(scenes.sizes), "counts": summarise(scenes)}
    out.write_text(json.dumps(summary, indent=1) + "\n")
