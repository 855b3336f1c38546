"""What the papers report, to stand beside our own figures; each with its place."""

from __future__ import annotations

from collections.abc import Mapping

EQUAL_CORES_CEILING: Mapping[str, float] = {"1": 1.0, "2": 1.5, "4": 2.0, "8": 3.0}
"""How many times as fast as equal batches the best split can be if time is batch over cores: the mean number of cores
over the smallest worker's. Source: calculated from OmniLearn, table I, rows BSP.
"""

SPEED_UP: Mapping[tuple[str, str], str] = {
    ("resnet18", "2"): "2x (Taming, fig. 6, a ResNet on 3 workers)",
    ("resnet50", "2"): "2x (Taming, fig. 6, a ResNet on 3 workers)",
    ("linear", "8"): "about 15 % (Taming, section IV, over its levels)",
    ("cnn", "8"): "2x to 4x (Taming, section IV, MNIST, over its levels)",
    ("svm", "8"): "62 % (LB-BSP, fig. 10, Cluster-B)",
}
"""By workload and level: how much faster than equal batches, on other machines at about such a level."""

DYNAMIC_TIME_SAVED: Mapping[str, str] = {
    "resnet18": "27.9 %",
    "resnet50": "22.7 %",
    "alexnet": "29.3 %",
    "vgg11": "12.8 %",
}
"""Time to accuracy saved over equal batches while levels change. Source: OmniLearn, section IV-F."""

WEIGHTING_POINTS: Mapping[int, str] = {
    2: "+1.3 / +1.7 / +3.8 / +3.0",
    4: "+0.8 / +2.3 / +7.9 / +5.9",
    8: "+1.9 / +4.1 / +10.2 / +7.9",
}
"""By level, ResNet18 / ResNet50 / AlexNet / VGG11. Source: OmniLearn, table V, from its two columns of accuracy."""
