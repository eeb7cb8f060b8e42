import torch

from optrace.tracing.standin import StandIn
from tests.standin.recording import names


def test_names_answer_as_the_gpu(gpu: StandIn):
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1
    assert torch.cuda.current_device() == 0
    assert torch.cuda.get_device_name() == "NVIDIA H200"
    assert torch.cuda.is_bf16_supported()
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert torch.backends.cudnn.is_available()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    with torch.cuda.device(0), torch.cuda.nvtx.range("step"):
        torch.cuda.nvtx.mark("here")


def test_memory_follows_live_tensors(gpu):
    before = torch.cuda.memory_allocated()
    x = torch.empty(1000, 1000, device="cuda")
    assert torch.cuda.memory_allocated() - before == -(-4 * 1000 * 1000 // 512) * 512
    free, total = torch.cuda.mem_get_info()
    assert total - free == torch.cuda.memory_allocated()
    del x
    assert torch.cuda.memory_allocated() == before


def test_streams_and_events(gpu):
    stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        x = torch.zeros(2, device="cuda") + 1
        event.record()
        assert gpu.stream == stream.stream_id
        assert torch.cuda.current_stream() == stream
    torch.cuda.current_stream().wait_stream(stream)
    x.record_stream(torch.cuda.current_stream())
    event.synchronize()
    assert event.query()
    assert gpu.stream == 0


def test_random_state(gpu):
    state = torch.cuda.get_rng_state()
    torch.cuda.set_rng_state(state)
    torch.cuda.manual_seed_all(0)
    generator = torch.Generator("cuda")
    generator.manual_seed(0)
    assert generator.device == torch.device("cuda", 0)
    assert isinstance(generator, torch.Generator)
    assert isinstance(torch.Generator(), torch.Generator)
    assert names(gpu, lambda: torch.randn(3, device="cuda", generator=generator)) == ["randn.generator"]
    assert names(gpu, lambda: torch.cuda.get_rng_state()) == []
