"""TensorBoard's HParams: what its columns are, and a trial's row from its start to its end.

TensorBoard takes the first it reads of each of these records, and of a metric the newest value.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any

from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.api_pb2 import (
    DATA_TYPE_FLOAT64,
    DATA_TYPE_STRING,
    STATUS_FAILURE,
    STATUS_SUCCESS,
    Experiment,
    HParamInfo,
    MetricInfo,
    MetricName,
)
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo

from tune.dimensions import Dimensions

REASONS = {"decayed": 1, "price": 2, "diverged": 3, "memory": 4, "error": 5}
"""Why a trial ended, as a number, since a metric is one; 0 while it may go on."""
OTHER = REASONS["error"]
METRICS = {
    "4 valid/perplexity": "perplexity",
    "4 valid/bits_per_character": "bits per character",
    "7 trial/parameters": "parameters",
    "7 trial/perplexity_per_million": "perplexity per million parameters",
    "7 trial/device_seconds": "device-seconds",
    "7 trial/rung": "rung",
    "7 trial/ended": f"ended: 0 not, {', '.join(f'{number} {reason}' for reason, number in REASONS.items())}",
}
"""Each tag whose newest value is a column, and how that is headed."""


def number_of(reason: str) -> int:
    """Of the reason for which a trial was ended; the journal's text may go on after the word."""
    return next((number for word, number in REASONS.items() if reason.startswith(word)), OTHER)


def names_of(dimensions: Iterable[str]) -> dict[str, str]:
    """TensorBoard sorts columns by these names, and heads them as they are in the space."""
    names = ("family", *dimensions)
    width = len(str(len(names)))
    return {name: f"{place:0{width}} {name}" for place, name in enumerate(names, 1)}


def columns(dimensions: Dimensions, families: Iterable[str]) -> Summary.Value:
    """Once a study, in any of its runs."""
    infos, names = [], names_of(dimensions)
    for name, values in {"family": tuple(families), **dimensions}.items():
        kind = DATA_TYPE_STRING if isinstance(values[0], str) else DATA_TYPE_FLOAT64
        infos.append(HParamInfo(name=names[name], display_name=name, type=kind))
        infos[-1].domain_discrete.extend(values)
    metrics = [MetricInfo(name=MetricName(tag=tag), display_name=head) for tag, head in METRICS.items()]
    return _record(metadata.EXPERIMENT_TAG, experiment=Experiment(hparam_infos=infos, metric_infos=metrics))


def begun(dimensions: Iterable[str], family: str, config: Mapping[str, Any]) -> Summary.Value:
    """A trial's row, from its start on; a dimension that its family does not have stays empty."""
    start, names = SessionStartInfo(start_time_secs=time.time()), names_of(dimensions)
    values = {"family": family, **config}
    for name in names.keys() & values.keys():
        if isinstance(value := values[name], str):
            start.hparams[names[name]].string_value = value
        else:
            start.hparams[names[name]].number_value = value
    return _record(metadata.SESSION_START_INFO_TAG, session_start_info=start)


def ended(reason: str) -> Summary.Value:
    """The state of a trial that ended, by which its row can be filtered."""
    status = STATUS_SUCCESS if reason.startswith(("decayed", "price")) else STATUS_FAILURE
    end = SessionEndInfo(status=status, end_time_secs=time.time())
    return _record(metadata.SESSION_END_INFO_TAG, session_end_info=end)


def _record(tag: str, **data: Any) -> Summary.Value:
    return Summary.Value(tag=tag, metadata=metadata.create_summary_metadata(HParamsPluginData(**data)))
