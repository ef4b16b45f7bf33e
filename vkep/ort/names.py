"""The provider's names, in a module that imports nothing."""

#: the provider's name in ONNX Runtime
EP_NAME = "VulkanExecutionProvider"
#: the name under which its library is registered
REGISTRATION_NAME = "vkep"
