"""VK_ARM_tensors and VK_ARM_data_graph, which the ``vulkan`` package lacks: structures, functions, numbers.

Declared from the Vulkan registry (extensions 461, 508 and 509). Dispatchable handles and pointers to structures of the
package are ``void *``; the other handles are 64-bit integers, as in the ABI of 64-bit platforms.
"""

from __future__ import annotations

EXTENSIONS = ("VK_ARM_tensors", "VK_ARM_data_graph")
#: enabled with them where the device has them
HELPFUL = (
    "VK_ARM_data_graph_instruction_set_tosa",
    "VK_KHR_synchronization2",
    "VK_KHR_deferred_host_operations",
)

DESCRIPTOR_TYPE_TENSOR = 1000460000
BIND_POINT_DATA_GRAPH = 1000507000
TILING_LINEAR = 1
USAGE_SHADER, USAGE_DATA_GRAPH = 0x2, 0x20
BIND_POINT_TYPE_MEMORY = 0

CDEF = """
typedef uint64_t VkTensorARM;
typedef uint64_t VkTensorViewARM;
typedef uint64_t VkDataGraphPipelineSessionARM;
typedef struct { uint32_t sType; void* pNext;
    uint32_t tensorNonPacked, shaderTensorAccess, shaderStorageTensorArrayDynamicIndexing,
    shaderStorageTensorArrayNonUniformIndexing, descriptorBindingStorageTensorUpdateAfterBind, tensors;
} VkPhysicalDeviceTensorFeaturesARM;
typedef struct { uint32_t sType; void* pNext;
    uint32_t dataGraph, dataGraphUpdateAfterBind, dataGraphSpecializationConstants, dataGraphDescriptorBuffer,
    dataGraphShaderModule;
} VkPhysicalDeviceDataGraphFeaturesARM;
typedef struct { uint32_t sType; void* pNext;
    uint32_t tiling; uint32_t format; uint32_t dimensionCount; int64_t* pDimensions; int64_t* pStrides; uint64_t usage;
} VkTensorDescriptionARM;
typedef struct { uint32_t sType; void* pNext;
    uint64_t flags; VkTensorDescriptionARM* pDescription; uint32_t sharingMode; uint32_t queueFamilyIndexCount;
    uint32_t* pQueueFamilyIndices;
} VkTensorCreateInfoARM;
typedef struct { uint32_t sType; void* pNext; uint64_t flags; VkTensorARM tensor; uint32_t format;
} VkTensorViewCreateInfoARM;
typedef struct { uint32_t sType; void* pNext; VkTensorARM tensor; } VkTensorMemoryRequirementsInfoARM;
typedef struct { uint32_t sType; void* pNext; VkTensorARM tensor; uint64_t memory; uint64_t memoryOffset;
} VkBindTensorMemoryInfoARM;
typedef struct { uint32_t sType; void* pNext; uint32_t tensorViewCount; VkTensorViewARM* pTensorViews;
} VkWriteDescriptorSetTensorARM;
typedef struct { uint32_t sType; void* pNext; uint32_t id; void* pConstantData; } VkDataGraphPipelineConstantARM;
typedef struct { uint32_t sType; void* pNext; uint32_t dimension, zeroCount, groupSize;
} VkDataGraphPipelineConstantTensorSemiStructuredSparsityInfoARM;
typedef struct { uint32_t sType; void* pNext; uint32_t descriptorSet, binding, arrayElement;
} VkDataGraphPipelineResourceInfoARM;
typedef struct { uint32_t sType; void* pNext; uint64_t flags; uint64_t layout; uint32_t resourceInfoCount;
    VkDataGraphPipelineResourceInfoARM* pResourceInfos;
} VkDataGraphPipelineCreateInfoARM;
typedef struct { uint32_t sType; void* pNext; uint64_t module; char* pName; void* pSpecializationInfo;
    uint32_t constantCount; VkDataGraphPipelineConstantARM* pConstants;
} VkDataGraphPipelineShaderModuleCreateInfoARM;
typedef struct { uint32_t sType; void* pNext; uint64_t flags; uint64_t dataGraphPipeline;
} VkDataGraphPipelineSessionCreateInfoARM;
typedef struct { uint32_t sType; void* pNext; VkDataGraphPipelineSessionARM session;
} VkDataGraphPipelineSessionBindPointRequirementsInfoARM;
typedef struct { uint32_t sType; void* pNext; uint32_t bindPoint, bindPointType, numObjects;
} VkDataGraphPipelineSessionBindPointRequirementARM;
typedef struct { uint32_t sType; void* pNext; VkDataGraphPipelineSessionARM session; uint32_t bindPoint, objectIndex;
} VkDataGraphPipelineSessionMemoryRequirementsInfoARM;
typedef struct { uint32_t sType; void* pNext; VkDataGraphPipelineSessionARM session; uint32_t bindPoint, objectIndex;
    uint64_t memory, memoryOffset;
} VkBindDataGraphPipelineSessionMemoryInfoARM;

typedef int32_t (*PFN_vkCreateTensorARM)(void*, VkTensorCreateInfoARM*, void*, VkTensorARM*);
typedef void (*PFN_vkDestroyTensorARM)(void*, VkTensorARM, void*);
typedef int32_t (*PFN_vkCreateTensorViewARM)(void*, VkTensorViewCreateInfoARM*, void*, VkTensorViewARM*);
typedef void (*PFN_vkDestroyTensorViewARM)(void*, VkTensorViewARM, void*);
typedef void (*PFN_vkGetTensorMemoryRequirementsARM)(void*, VkTensorMemoryRequirementsInfoARM*, void*);
typedef int32_t (*PFN_vkBindTensorMemoryARM)(void*, uint32_t, VkBindTensorMemoryInfoARM*);
typedef int32_t (*PFN_vkCreateDataGraphPipelinesARM)(void*, uint64_t, uint64_t, uint32_t,
    VkDataGraphPipelineCreateInfoARM*, void*, uint64_t*);
typedef int32_t (*PFN_vkCreateDataGraphPipelineSessionARM)(void*, VkDataGraphPipelineSessionCreateInfoARM*, void*,
    VkDataGraphPipelineSessionARM*);
typedef int32_t (*PFN_vkGetDataGraphPipelineSessionBindPointRequirementsARM)(void*,
    VkDataGraphPipelineSessionBindPointRequirementsInfoARM*, uint32_t*,
    VkDataGraphPipelineSessionBindPointRequirementARM*);
typedef void (*PFN_vkGetDataGraphPipelineSessionMemoryRequirementsARM)(void*,
    VkDataGraphPipelineSessionMemoryRequirementsInfoARM*, void*);
typedef int32_t (*PFN_vkBindDataGraphPipelineSessionMemoryARM)(void*, uint32_t,
    VkBindDataGraphPipelineSessionMemoryInfoARM*);
typedef void (*PFN_vkDestroyDataGraphPipelineSessionARM)(void*, VkDataGraphPipelineSessionARM, void*);
typedef void (*PFN_vkCmdDispatchDataGraphARM)(void*, VkDataGraphPipelineSessionARM, void*);
"""

#: sType by structure name
STYPE = {
    "VkTensorCreateInfoARM": 1000460000,
    "VkTensorViewCreateInfoARM": 1000460001,
    "VkBindTensorMemoryInfoARM": 1000460002,
    "VkWriteDescriptorSetTensorARM": 1000460003,
    "VkTensorDescriptionARM": 1000460006,
    "VkTensorMemoryRequirementsInfoARM": 1000460007,
    "VkPhysicalDeviceTensorFeaturesARM": 1000460009,
    "VkDataGraphPipelineCreateInfoARM": 1000507000,
    "VkDataGraphPipelineSessionCreateInfoARM": 1000507001,
    "VkDataGraphPipelineResourceInfoARM": 1000507002,
    "VkDataGraphPipelineConstantARM": 1000507003,
    "VkDataGraphPipelineSessionMemoryRequirementsInfoARM": 1000507004,
    "VkBindDataGraphPipelineSessionMemoryInfoARM": 1000507005,
    "VkPhysicalDeviceDataGraphFeaturesARM": 1000507006,
    "VkDataGraphPipelineShaderModuleCreateInfoARM": 1000507007,
    "VkDataGraphPipelineSessionBindPointRequirementsInfoARM": 1000507011,
    "VkDataGraphPipelineSessionBindPointRequirementARM": 1000507012,
    "VkDataGraphPipelineConstantTensorSemiStructuredSparsityInfoARM": 1000507015,
}

#: the functions of these extensions (their types are in `CDEF`)
FUNCTIONS = frozenset(
    line.split("(*PFN_")[1].split(")")[0] for line in CDEF.splitlines() if line.startswith("typedef") and "PFN_" in line
)
