"""The twelve techniques: records and exact rules one module each, what-ifs, composition, waterfall and map."""

from kvplan.cache.techniques.base import EngineSupport, Technique, engine_support
from kvplan.cache.techniques.catalog import TECHNIQUES, find_technique
from kvplan.cache.techniques.compose import Composition, apply
from kvplan.cache.techniques.runtime import Techniques, parse_techniques, techniques_from_list
from kvplan.cache.techniques.technique_map import Placement, technique_map
from kvplan.cache.techniques.waterfall import Step, waterfall
from kvplan.cache.techniques.what_if import what_if

__all__ = [
    "TECHNIQUES",
    "Composition",
    "EngineSupport",
    "Placement",
    "Step",
    "Technique",
    "Techniques",
    "apply",
    "engine_support",
    "find_technique",
    "parse_techniques",
    "technique_map",
    "techniques_from_list",
    "waterfall",
    "what_if",
]
