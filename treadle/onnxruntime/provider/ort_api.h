/* What the provider and the custom operator use of ONNX Runtime's binary interface, as its public headers lay it out:
 * tables of functions that only ever grow at their ends, so that the number of an entry never changes. Entries that are
 * not used are `gap`s, and the numbers of those behind them are asserted below.
 *
 * The provider asks for the interface of version 24 (ONNX Runtime 1.24), the oldest that has all of it. The custom
 * operator uses what version 16 has: the oldest whose operators return a status. */
#ifndef TREADLE_ORT_API_H
#define TREADLE_ORT_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define ORT_VERSION 24
#define ORT_OPERATOR_VERSION 16

typedef struct OrtStatus OrtStatus;
typedef struct OrtValue OrtValue;
typedef struct OrtTypeInfo OrtTypeInfo;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtKernelInfo OrtKernelInfo;
typedef struct OrtCustomOpDomain OrtCustomOpDomain;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtKeyValuePairs OrtKeyValuePairs;
typedef struct OrtLogger OrtLogger;
typedef struct OrtGraph OrtGraph;
typedef struct OrtNode OrtNode;
typedef struct OrtValueInfo OrtValueInfo;
typedef struct OrtOpAttr OrtOpAttr;
typedef struct OrtHardwareDevice OrtHardwareDevice;
typedef struct OrtEpDevice OrtEpDevice;
typedef struct OrtEpGraphSupportInfo OrtEpGraphSupportInfo;
typedef struct OrtNodeComputeContext OrtNodeComputeContext;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtAllocator OrtAllocator;
typedef struct OrtDataTransferImpl OrtDataTransferImpl;

enum { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2, ORT_EP_FAIL = 11 };
enum { ORT_LOG_INFO = 1, ORT_LOG_WARNING = 2, ORT_LOG_ERROR = 3 };
enum { ORT_IS_TENSOR = 1 };
enum { ORT_STRINGS = 8 }; /* an element type; up to 23 they are numbered as ONNX's are */
enum { ORT_DEVICE_CPU = 0 };
enum {
    ORT_ATTR_INT = 1, ORT_ATTR_INTS, ORT_ATTR_FLOAT, ORT_ATTR_FLOATS, ORT_ATTR_STRING, ORT_ATTR_STRINGS, ORT_ATTR_GRAPH,
    ORT_ATTR_TENSOR
};

typedef void (*ort_gap)(void);
typedef struct OrtApi OrtApi;

/* An execution provider: a table of functions, which ONNX Runtime calls with the table itself. Those that are NULL have
 * defaults. */
typedef struct OrtNodeComputeInfo OrtNodeComputeInfo;
struct OrtNodeComputeInfo {
    uint32_t ort_version_supported;
    OrtStatus *(*CreateState)(OrtNodeComputeInfo *, OrtNodeComputeContext *, void **state);
    OrtStatus *(*Compute)(OrtNodeComputeInfo *, void *state, OrtKernelContext *);
    void (*ReleaseState)(OrtNodeComputeInfo *, void *state);
};

typedef struct OrtNodeFusionOptions {
    uint32_t ort_version_supported;
    bool drop_constant_initializers;
} OrtNodeFusionOptions;

typedef struct OrtEp OrtEp;
struct OrtEp {
    uint32_t ort_version_supported;
    const char *(*GetName)(const OrtEp *);
    OrtStatus *(*GetCapability)(OrtEp *, const OrtGraph *, OrtEpGraphSupportInfo *);
    OrtStatus *(*Compile)(OrtEp *, const OrtGraph **, const OrtNode **fused, size_t, OrtNodeComputeInfo **, OrtNode **contexts);
    void (*ReleaseNodeComputeInfos)(OrtEp *, OrtNodeComputeInfo **, size_t);
    ort_gap gap_5_to_13[9]; /* layouts, dynamic options, begin and end of runs, allocators, streams, kernels */
    OrtStatus *(*IsConcurrentRunSupported)(OrtEp *, bool *);
};

typedef struct OrtEpFactory OrtEpFactory;
struct OrtEpFactory {
    uint32_t ort_version_supported;
    const char *(*GetName)(const OrtEpFactory *);
    const char *(*GetVendor)(const OrtEpFactory *);
    OrtStatus *(*GetSupportedDevices)(OrtEpFactory *, const OrtHardwareDevice *const *, size_t, OrtEpDevice **, size_t most, size_t *);
    OrtStatus *(*CreateEp)(OrtEpFactory *, const OrtHardwareDevice *const *, const OrtKeyValuePairs *const *, size_t,
                           const OrtSessionOptions *, const OrtLogger *, OrtEp **);
    void (*ReleaseEp)(OrtEpFactory *, OrtEp *);
    uint32_t (*GetVendorId)(const OrtEpFactory *);
    const char *(*GetVersion)(const OrtEpFactory *);
    ort_gap gap_8[1]; /* of compatibility */
    OrtStatus *(*CreateAllocator)(OrtEpFactory *, const OrtMemoryInfo *, const OrtKeyValuePairs *, OrtAllocator **);
    void (*ReleaseAllocator)(OrtEpFactory *, OrtAllocator *);
    OrtStatus *(*CreateDataTransfer)(OrtEpFactory *, OrtDataTransferImpl **);
    bool (*IsStreamAware)(const OrtEpFactory *);
    ort_gap gap_13_to_17[5]; /* streams, incompatibilities, resources, custom operators */
};

typedef struct OrtEpApi {
    OrtStatus *(*CreateEpDevice)(OrtEpFactory *, const OrtHardwareDevice *, const OrtKeyValuePairs *, const OrtKeyValuePairs *,
                                 OrtEpDevice **);
    ort_gap gap_1[1];
    OrtStatus *(*EpGraphSupportInfo_AddNodesToFuse)(OrtEpGraphSupportInfo *, const OrtNode *const *, size_t,
                                                    const OrtNodeFusionOptions *);
} OrtEpApi;

typedef struct OrtModelEditorApi {
    ort_gap gap_0[6];
    OrtStatus *(*CreateNode)(const char *operator, const char *domain, const char *name, const char *const *inputs, size_t,
                             const char *const *outputs, size_t, OrtOpAttr **, size_t, OrtNode **);
} OrtModelEditorApi;

/* A custom operator of that version: a table of functions, which ONNX Runtime calls with the table itself, and with a
 * kernel that the table made. Those that are NULL have defaults. */
typedef struct OrtCustomOp OrtCustomOp;
struct OrtCustomOp {
    uint32_t version;
    ort_gap gap_1[1]; /* CreateKernel, which cannot fail */
    const char *(*GetName)(const OrtCustomOp *);
    const char *(*GetExecutionProviderType)(const OrtCustomOp *); /* NULL: the CPU's */
    int (*GetInputType)(const OrtCustomOp *, size_t);
    size_t (*GetInputTypeCount)(const OrtCustomOp *);
    int (*GetOutputType)(const OrtCustomOp *, size_t);
    size_t (*GetOutputTypeCount)(const OrtCustomOp *);
    ort_gap gap_8[1]; /* KernelCompute, which cannot fail */
    void (*KernelDestroy)(void *kernel);
    int (*GetInputCharacteristic)(const OrtCustomOp *, size_t);
    int (*GetOutputCharacteristic)(const OrtCustomOp *, size_t);
    int (*GetInputMemoryType)(const OrtCustomOp *, size_t);
    ort_gap gap_13_to_16[4]; /* of operators with any number of inputs or outputs */
    OrtStatus *(*CreateKernelV2)(const OrtCustomOp *, const OrtApi *, const OrtKernelInfo *, void **kernel);
    OrtStatus *(*KernelComputeV2)(void *kernel, OrtKernelContext *);
};

enum { ORT_REQUIRED = 0 }; /* a characteristic */
enum { ORT_DEFAULT_MEMORY = 0 };

struct OrtApi {
    OrtStatus *(*CreateStatus)(int code, const char *message);
    ort_gap gap_1[1];
    const char *(*GetErrorMessage)(const OrtStatus *);
    ort_gap gap_3[23];
    OrtStatus *(*CreateCustomOpDomain)(const char *domain, OrtCustomOpDomain **);
    OrtStatus *(*CustomOpDomain_Add)(OrtCustomOpDomain *, const OrtCustomOp *);
    OrtStatus *(*AddCustomOpDomain)(OrtSessionOptions *, OrtCustomOpDomain *);
    ort_gap gap_29[22];
    OrtStatus *(*GetTensorMutableData)(OrtValue *, void **);
    ort_gap gap_52[3];
    OrtStatus *(*CastTypeInfoToTensorInfo)(const OrtTypeInfo *, const OrtTensorTypeAndShapeInfo **);
    OrtStatus *(*GetOnnxTypeFromTypeInfo)(const OrtTypeInfo *, int *);
    ort_gap gap_57[3];
    OrtStatus *(*GetTensorElementType)(const OrtTensorTypeAndShapeInfo *, int *);
    OrtStatus *(*GetDimensionsCount)(const OrtTensorTypeAndShapeInfo *, size_t *);
    OrtStatus *(*GetDimensions)(const OrtTensorTypeAndShapeInfo *, int64_t *, size_t);
    OrtStatus *(*GetSymbolicDimensions)(const OrtTensorTypeAndShapeInfo *, const char **, size_t);
    ort_gap gap_64[1];
    OrtStatus *(*GetTensorTypeAndShape)(const OrtValue *, OrtTensorTypeAndShapeInfo **);
    ort_gap gap_66[24];
    OrtStatus *(*KernelContext_GetInput)(const OrtKernelContext *, size_t, const OrtValue **);
    OrtStatus *(*KernelContext_GetOutput)(OrtKernelContext *, size_t, const int64_t *, size_t, OrtValue **);
    ort_gap gap_92[1];
    void (*ReleaseStatus)(OrtStatus *);
    ort_gap gap_94[2];
    void (*ReleaseValue)(OrtValue *);
    ort_gap gap_97[2];
    void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo *);
    ort_gap gap_100[1];
    void (*ReleaseCustomOpDomain)(OrtCustomOpDomain *);
    ort_gap gap_102[109];
    OrtStatus *(*CreateOpAttr)(const char *name, const void *data, int length, int type, OrtOpAttr **);
    void (*ReleaseOpAttr)(OrtOpAttr *);
    ort_gap gap_213[24];
    OrtStatus *(*HasSessionConfigEntry)(const OrtSessionOptions *, const char *key, int *);
    OrtStatus *(*GetSessionConfigEntry)(const OrtSessionOptions *, const char *key, char *value, size_t *);
    ort_gap gap_239[8];
    OrtStatus *(*Logger_LogMessage)(const OrtLogger *, int severity, const char *, const char *file, int line, const char *function);
    ort_gap gap_248[24];
    OrtStatus *(*ReadOpAttr)(const OrtOpAttr *, int type, void *, size_t, size_t *);
    ort_gap gap_273[16];
    OrtStatus *(*GetValueInfoName)(const OrtValueInfo *, const char **);
    OrtStatus *(*GetValueInfoTypeInfo)(const OrtValueInfo *, const OrtTypeInfo **);
    const OrtModelEditorApi *(*GetModelEditorApi)(void);
    ort_gap gap_292[6];
    void (*GetKeyValuePairs)(const OrtKeyValuePairs *, const char *const **, const char *const **, size_t *);
    ort_gap gap_299[1];
    void (*ReleaseKeyValuePairs)(OrtKeyValuePairs *);
    ort_gap gap_301[6];
    int (*HardwareDevice_Type)(const OrtHardwareDevice *);
    ort_gap gap_308[9];
    const OrtEpApi *(*GetEpApi)(void);
    OrtStatus *(*GetTensorSizeInBytes)(const OrtValue *, size_t *);
    ort_gap gap_319[7];
    OrtStatus *(*ValueInfo_GetInitializerValue)(const OrtValueInfo *, const OrtValue **);
    ort_gap gap_327[4];
    OrtStatus *(*ValueInfo_IsConstantInitializer)(const OrtValueInfo *, bool *);
    ort_gap gap_332[2];
    OrtStatus *(*Graph_GetModelPath)(const OrtGraph *, const char **);
    OrtStatus *(*Graph_GetOnnxIRVersion)(const OrtGraph *, int64_t *);
    OrtStatus *(*Graph_GetNumOperatorSets)(const OrtGraph *, size_t *);
    OrtStatus *(*Graph_GetOperatorSets)(const OrtGraph *, const char **, int64_t *, size_t);
    OrtStatus *(*Graph_GetNumInputs)(const OrtGraph *, size_t *);
    OrtStatus *(*Graph_GetInputs)(const OrtGraph *, const OrtValueInfo **, size_t);
    OrtStatus *(*Graph_GetNumOutputs)(const OrtGraph *, size_t *);
    OrtStatus *(*Graph_GetOutputs)(const OrtGraph *, const OrtValueInfo **, size_t);
    OrtStatus *(*Graph_GetNumInitializers)(const OrtGraph *, size_t *);
    OrtStatus *(*Graph_GetInitializers)(const OrtGraph *, const OrtValueInfo **, size_t);
    OrtStatus *(*Graph_GetNumNodes)(const OrtGraph *, size_t *);
    OrtStatus *(*Graph_GetNodes)(const OrtGraph *, const OrtNode **, size_t);
    OrtStatus *(*Graph_GetParentNode)(const OrtGraph *, const OrtNode **);
    ort_gap gap_347[1];
    OrtStatus *(*Node_GetId)(const OrtNode *, size_t *);
    OrtStatus *(*Node_GetName)(const OrtNode *, const char **);
    OrtStatus *(*Node_GetOperatorType)(const OrtNode *, const char **);
    OrtStatus *(*Node_GetDomain)(const OrtNode *, const char **);
    OrtStatus *(*Node_GetSinceVersion)(const OrtNode *, int *);
    OrtStatus *(*Node_GetNumInputs)(const OrtNode *, size_t *);
    OrtStatus *(*Node_GetInputs)(const OrtNode *, const OrtValueInfo **, size_t);
    OrtStatus *(*Node_GetNumOutputs)(const OrtNode *, size_t *);
    OrtStatus *(*Node_GetOutputs)(const OrtNode *, const OrtValueInfo **, size_t);
    OrtStatus *(*Node_GetNumImplicitInputs)(const OrtNode *, size_t *);
    OrtStatus *(*Node_GetImplicitInputs)(const OrtNode *, const OrtValueInfo **, size_t);
    OrtStatus *(*Node_GetNumAttributes)(const OrtNode *, size_t *);
    OrtStatus *(*Node_GetAttributes)(const OrtNode *, const OrtOpAttr **, size_t);
    OrtStatus *(*Node_GetAttributeByName)(const OrtNode *, const char *, const OrtOpAttr **);
    OrtStatus *(*OpAttr_GetTensorAttributeAsOrtValue)(const OrtOpAttr *, OrtValue **);
    OrtStatus *(*OpAttr_GetType)(const OrtOpAttr *, int *);
    OrtStatus *(*OpAttr_GetName)(const OrtOpAttr *, const char **);
    OrtStatus *(*Node_GetNumSubgraphs)(const OrtNode *, size_t *);
    OrtStatus *(*Node_GetSubgraphs)(const OrtNode *, const OrtGraph **, size_t, const char **attributes);
    ort_gap gap_367[11];
    OrtStatus *(*GetTensorData)(const OrtValue *, const void **);
    OrtStatus *(*GetSessionOptionsConfigEntries)(const OrtSessionOptions *, OrtKeyValuePairs **);
    ort_gap gap_380[10];
    bool (*TensorTypeAndShape_HasShape)(const OrtTensorTypeAndShapeInfo *);
    ort_gap gap_391[23];
    OrtStatus *(*GetTensorElementTypeAndShapeDataReference)(const OrtValue *, int *, const int64_t **, size_t *);
};

typedef struct OrtApiBase {
    const OrtApi *(*GetApi)(uint32_t version); /* NULL where that version is not there */
    const char *(*GetVersionString)(void);
} OrtApiBase;

#define ORT_IS_NUMBER(table, entry, number) \
    _Static_assert(offsetof(table, entry) == (number) * sizeof(ort_gap), #entry " has another number")

ORT_IS_NUMBER(OrtEp, Compile, 3);
ORT_IS_NUMBER(OrtEp, IsConcurrentRunSupported, 14);
ORT_IS_NUMBER(OrtEpFactory, GetVersion, 7);
ORT_IS_NUMBER(OrtEpFactory, IsStreamAware, 12);
ORT_IS_NUMBER(OrtEpApi, EpGraphSupportInfo_AddNodesToFuse, 2);
ORT_IS_NUMBER(OrtModelEditorApi, CreateNode, 6);
ORT_IS_NUMBER(OrtCustomOp, KernelDestroy, 9);
ORT_IS_NUMBER(OrtCustomOp, KernelComputeV2, 18);
ORT_IS_NUMBER(OrtApi, CreateCustomOpDomain, 26);
ORT_IS_NUMBER(OrtApi, GetTensorMutableData, 51);
ORT_IS_NUMBER(OrtApi, CastTypeInfoToTensorInfo, 55);
ORT_IS_NUMBER(OrtApi, GetTensorElementType, 60);
ORT_IS_NUMBER(OrtApi, GetTensorTypeAndShape, 65);
ORT_IS_NUMBER(OrtApi, KernelContext_GetInput, 90);
ORT_IS_NUMBER(OrtApi, ReleaseStatus, 93);
ORT_IS_NUMBER(OrtApi, ReleaseValue, 96);
ORT_IS_NUMBER(OrtApi, ReleaseTensorTypeAndShapeInfo, 99);
ORT_IS_NUMBER(OrtApi, ReleaseCustomOpDomain, 101);
ORT_IS_NUMBER(OrtApi, CreateOpAttr, 211);
ORT_IS_NUMBER(OrtApi, GetSessionConfigEntry, 238);
ORT_IS_NUMBER(OrtApi, Logger_LogMessage, 247);
ORT_IS_NUMBER(OrtApi, ReadOpAttr, 272);
ORT_IS_NUMBER(OrtApi, GetValueInfoName, 289);
ORT_IS_NUMBER(OrtApi, GetKeyValuePairs, 298);
ORT_IS_NUMBER(OrtApi, ReleaseKeyValuePairs, 300);
ORT_IS_NUMBER(OrtApi, HardwareDevice_Type, 307);
ORT_IS_NUMBER(OrtApi, GetEpApi, 317);
ORT_IS_NUMBER(OrtApi, ValueInfo_GetInitializerValue, 326);
ORT_IS_NUMBER(OrtApi, ValueInfo_IsConstantInitializer, 331);
ORT_IS_NUMBER(OrtApi, Graph_GetModelPath, 334);
ORT_IS_NUMBER(OrtApi, Graph_GetParentNode, 346);
ORT_IS_NUMBER(OrtApi, Node_GetId, 348);
ORT_IS_NUMBER(OrtApi, Node_GetSubgraphs, 366);
ORT_IS_NUMBER(OrtApi, GetTensorData, 378);
ORT_IS_NUMBER(OrtApi, TensorTypeAndShape_HasShape, 390);
ORT_IS_NUMBER(OrtApi, GetTensorElementTypeAndShapeDataReference, 414);

/* The status of a runtime that is too old: CreateStatus is as old as the table. */
static OrtStatus *refuse_runtime(const OrtApiBase *base, int code, int oldest) {
    char message[256];
    snprintf(message, sizeof message, "Treadle: ONNX Runtime is version %s; accepted: 1.%d or newer", base->GetVersionString(), oldest);
    return base->GetApi(1)->CreateStatus(code, message);
}

/* Returns the status of a call that failed. */
#define RETURN_IF_FAILED(call) \
    do { \
        OrtStatus *failed_ = (call); \
        if (failed_) return failed_; \
    } while (0)

#endif
