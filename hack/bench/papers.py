"""What the papers report, to stand beside our own figures; each with its place."""

from __future__ import annotations

from collections.abc import Mapping

EQUAL_CORES_CEILING: Mapping[str, float] = {"1": 1.0, "2": 1.5, "4": 2.0, "8": 3.0}
"""How many times as fast as equal batches the best split can be if time is batch over cores: the mean number of cores
over the smallest worker's. Source: calculated from OmniLearn, table I, rows BSP.
"""

DYNAMIC_TIME_SAVED: Mapping[str, str] = {
    "resnet18": "27.9 %",
    "resnet50": "22.7 %",
    "alexnet": "29.3 %",
    "vgg11": "12.8 %",
}
"""Time to accuracy saved over equal batches while levels change, from 1 to 8 and back. Source: OmniLearn, section IV-F.

Nothing else stands beside our speeds: Taming and LB-BSP measured clusters of other shapes than these levels.
"""

WEIGHTING_POINTS: Mapping[int, str] = {
    2: "+1.3 / +1.7 / +3.8 / +3.0",
    4: "+0.8 / +2.3 / +7.9 / +5.9",
    8: "+1.9 / +4.1 / +10.2 / +7.9",
}
"""By level, ResNet18 / ResNet50 / AlexNet / VGG11. Source: OmniLearn, table V, from its two columns of accuracy."""
