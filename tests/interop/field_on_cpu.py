"""The field's package (checkpoint-engine 0.4.2) on a CPU: its worker as it is, but for the check that refuses the device."""
import older_torch  # noqa: F401  (before the field's package)

import checkpoint_engine.worker as field


class CpuDevice:
    """In the place of torch.cuda: there is nothing to wait for."""

    def synchronize(self):
        pass

    def ipc_collect(self):
        pass

    def empty_cache(self):
        pass


class CpuDeviceManager:
    device_module = CpuDevice()


field.DeviceManager = CpuDeviceManager


class VllmColocateWorkerExtension(field.VllmColocateWorkerExtension):
    """Its update_weights_from_ipc(), unmodified, around vLLM's layerwise reload: vLLM 0.32 on a CPU packs the weights of linear
    layers and drops the originals, so that the plain load_weights() of the field's extension finds parameters of size 0.
    """

    @property
    def _device_uuid(self):
        return f"CPU-{self.rank}"

    def update_weights_from_ipc(self, zmq_handles):
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        model = self.model_runner.model
        initialize_layerwise_reload(model)
        done = []

        def finish():
            finalize_layerwise_reload(model, self.model_config)
            done.append(True)

        try:
            field.update_weights_from_ipc(
                self._zmq_ctx, zmq_handles[self._device_uuid], device_id=self.device.index, post_hook=finish,
                run=lambda weights: model.load_weights([(name, tensor.clone()) for name, tensor in weights]))
        finally:
            if not done:
                finish()
