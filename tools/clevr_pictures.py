"""Original pictures beside rendered ones: ``python tools/clevr_pictures.py DATA OUT.png``.

DATA has ``clevr/CLEVR_train_scenes_1000.json.gz`` and ``clevr/clevr_v1.0_sample_images.zip``.
Lights are jittered in the original by numbers that its files do not have; here they are not. How
far fitted cameras are from the stored pixel coordinates is written to OUT.json.
"""

import json
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from matplotlib.image import imsave

from fspool.data.clevr.arrays import Scenes
from fspool.data.clevr.camera import fit, project
from fspool.data.clevr.image_files import read_image
from fspool.data.clevr.render import render
from fspool.data.clevr.scene_files import image_name, read_scenes

IMAGES = (0, 6)
SIZE = (160, 240)

if __name__ == "__main__":
    root, out = Path(sys.argv[1]) / "clevr", Path(sys.argv[2])
    scenes = read_scenes(root / "CLEVR_train_scenes_1000.json.gz")
    few = Scenes(*(tensor[list(IMAGES)] for tensor in scenes))
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(root / "clevr_v1.0_sample_images.zip").extractall(folder)
        paths = [next(Path(folder).rglob(image_name("train", image))) for image in IMAGES]
        real = torch.stack([read_image(path) for path in paths]).float()
    real = torch.nn.functional.interpolate(real, SIZE, mode="bilinear", antialias=True)
    made = render(few, size=SIZE, seed=None, rays=(3, 3)).float()
    rows = [torch.cat(list(part), 2) for part in (real, made)]
    picture = torch.cat(rows, 1).round().clamp(0, 255).to(torch.uint8)
    imsave(out, picture.permute(1, 2, 0).contiguous().numpy())
    camera = fit(scenes.coords, scenes.pixels, scenes.mask)
    off = (project(camera, scenes.coords.double()) - scenes.pixels)[scenes.mask].abs()
    counts = {"scenes": len(scenes.sizes), "objects": int(scenes.sizes.sum())}
    errors = {
        "pixels": round(float(off[:, :2].max()), 3),
        "depth": round(float(off[:, 2].max()), 6),
    }
    out.with_suffix(".json").write_text(json.dumps(counts | {"largest error": errors}) + "\n")
