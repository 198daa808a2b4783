"""The endpoints mean what the probes assume, and the metrics are called what the dashboards think.

A readiness probe on /v1/models is only worth something if that endpoint answers no sooner than the engine can serve;
an autoscaler reads nothing from a metric that was renamed.
"""

import httpx
import pytest

from shakedown.engine.metrics import golden_families, missing_families
from shakedown.judge.expectations import fact

pytestmark = pytest.mark.smoke


async def test_health_and_models_answer_as_the_probes_assume(vllm, scenario):
    """On every pod /health is 200 and /v1/models lists the model under the name that clients use."""
    async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
        urls = await vllm.engine_urls()
        health = [(await client.get(f"{url}/health")).status_code for url in urls.values()]
        listed = [(await client.get(f"{url}/v1/models")).json()["data"][0]["id"] for url in urls.values()]

    scenario.fact("pods asked", len(urls))
    scenario.fact("pods whose /health is not 200", [str(status) for status in health if status != 200])
    scenario.fact("pods that list another model", [name for name in listed if name != vllm.model])
    scenario.expect(fact("pods asked"), at_least=1)
    scenario.expect(fact("pods whose /health is not 200"), equals=[])
    scenario.expect(fact("pods that list another model"), equals=[])


async def test_the_metrics_have_the_names_that_dashboards_read(vllm, scenario):
    """Every metric family of the engine version's golden file is exported under that name and type."""
    golden = golden_families(vllm.settings.engine_version)
    async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
        for pod, url in (await vllm.engine_urls()).items():
            exported = (await client.get(f"{url}/metrics")).text
            scenario.fact(f"families missing on {pod}", sorted(missing_families(exported, golden)))
            scenario.expect(fact(f"families missing on {pod}"), equals=[])
    scenario.fact("families in the golden file", len(golden))
    scenario.expect(fact("families in the golden file"), at_least=20)


async def test_the_live_spec_is_the_rendered_one(vllm, scenario):
    """What the API server holds is what the manifests say: no webhook, controller or hand has changed it."""
    scenario.fact("fields that differ", list(await vllm.drift()))
    scenario.expect(fact("fields that differ"), equals=[])
