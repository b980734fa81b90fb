#include "http/service_routes.h"

namespace ckpt {

std::string service_openapi() {
  return R"json({
  "openapi": "3.0.3",
  "info": {
    "title": "checkpoint-engine serve",
    "version": "1",
    "description": "One rank of a job. Register a part at every rank, then gather and update at every rank at once. Another method than those listed for a path is 405, another path is 404, each with an Error."
  },
  "security": [{}, {"token": []}],
  "paths": {
    "/v1/checkpoints/{name}/files": {
      "parameters": [{"$ref": "#/components/parameters/name"}],
      "post": {
        "summary": "Register this rank's part: all tensors of these safetensors files",
        "requestBody": {"required": true, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Files"}}}},
        "responses": {"200": {"$ref": "#/components/responses/Done"}, "400": {"$ref": "#/components/responses/Error"}, "401": {"$ref": "#/components/responses/Error"}, "403": {"$ref": "#/components/responses/Error"}, "404": {"$ref": "#/components/responses/Error"}, "409": {"$ref": "#/components/responses/Error"}, "413": {"$ref": "#/components/responses/Error"}, "500": {"$ref": "#/components/responses/Error"}, "503": {"$ref": "#/components/responses/Error"}}
      }
    },
    "/v1/checkpoints/{name}": {
      "parameters": [{"$ref": "#/components/parameters/name"}],
      "delete": {
        "summary": "Free this rank's part",
        "responses": {"200": {"$ref": "#/components/responses/Done"}, "400": {"$ref": "#/components/responses/Error"}, "401": {"$ref": "#/components/responses/Error"}, "409": {"$ref": "#/components/responses/Error"}, "413": {"$ref": "#/components/responses/Error"}, "500": {"$ref": "#/components/responses/Error"}, "503": {"$ref": "#/components/responses/Error"}}
      }
    },
    "/v1/checkpoints/{name}/gather-metas": {
      "parameters": [{"$ref": "#/components/parameters/name"}],
      "post": {
        "summary": "Learn what every rank holds; collective",
        "responses": {"200": {"$ref": "#/components/responses/Done"}, "400": {"$ref": "#/components/responses/Error"}, "401": {"$ref": "#/components/responses/Error"}, "413": {"$ref": "#/components/responses/Error"}, "500": {"$ref": "#/components/responses/Error"}, "503": {"$ref": "#/components/responses/Error"}}
      }
    },
    "/v1/checkpoints/{name}/update": {
      "parameters": [{"$ref": "#/components/parameters/name"}],
      "post": {
        "summary": "Update running engines; collective, answered when it is over on every rank",
        "requestBody": {"required": true, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Update"}}}},
        "responses": {"200": {"$ref": "#/components/responses/Done"}, "400": {"$ref": "#/components/responses/Error"}, "401": {"$ref": "#/components/responses/Error"}, "409": {"$ref": "#/components/responses/Error"}, "413": {"$ref": "#/components/responses/Error"}, "500": {"$ref": "#/components/responses/Error"}, "503": {"$ref": "#/components/responses/Error"}}
      }
    },
    "/v1/metas": {
      "get": {
        "summary": "The gathered metas, by rank; {} before any were",
        "responses": {"200": {"description": "metas", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Metas"}}}}, "401": {"$ref": "#/components/responses/Error"}, "500": {"$ref": "#/components/responses/Error"}, "503": {"$ref": "#/components/responses/Error"}}
      },
      "post": {
        "summary": "Take metas that another job has exported: the answer of GET, or the file of --save-metas-file",
        "requestBody": {"required": true, "content": {"application/json": {"schema": {"oneOf": [{"$ref": "#/components/schemas/Metas"}, {"$ref": "#/components/schemas/ExportedMetas"}]}}}},
        "responses": {"200": {"$ref": "#/components/responses/Done"}, "400": {"$ref": "#/components/responses/Error"}, "401": {"$ref": "#/components/responses/Error"}, "409": {"$ref": "#/components/responses/Error"}, "413": {"$ref": "#/components/responses/Error"}, "500": {"$ref": "#/components/responses/Error"}, "503": {"$ref": "#/components/responses/Error"}}
      }
    },
    "/v1/healthz": {
      "get": {"summary": "200 while the service answers; needs no token", "security": [{}], "responses": {"200": {"$ref": "#/components/responses/Done"}, "500": {"$ref": "#/components/responses/Error"}, "503": {"$ref": "#/components/responses/Error"}}}
    },
    "/v1/status": {
      "get": {
        "summary": "Checkpoints, metas and the running update; never waits",
        "responses": {"200": {"description": "status", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Status"}}}}, "401": {"$ref": "#/components/responses/Error"}, "500": {"$ref": "#/components/responses/Error"}, "503": {"$ref": "#/components/responses/Error"}}
      }
    },
    "/metrics": {
      "get": {"summary": "Prometheus text format", "responses": {"200": {"description": "metrics", "content": {"text/plain": {"schema": {"type": "string"}}}}, "401": {"$ref": "#/components/responses/Error"}, "500": {"$ref": "#/components/responses/Error"}, "503": {"$ref": "#/components/responses/Error"}}}
    },
    "/openapi.json": {
      "get": {"summary": "This description", "responses": {"200": {"description": "OpenAPI 3.0", "content": {"application/json": {"schema": {"type": "object"}}}}, "401": {"$ref": "#/components/responses/Error"}, "500": {"$ref": "#/components/responses/Error"}, "503": {"$ref": "#/components/responses/Error"}}}
    }
  },
  "components": {
    "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
    "parameters": {
      "name": {"name": "name", "in": "path", "required": true, "description": "name of the checkpoint, percent-encoded", "schema": {"type": "string", "minLength": 1, "maxLength": 255}}
    },
    "responses": {
      "Done": {"description": "done; the body is empty"},
      "Error": {"description": "refused (4xx), busy (503) or failed (500); 401 without the token, 413 for a body over the limit", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    },
    "schemas": {
      "Error": {
        "type": "object", "required": ["error"], "additionalProperties": false,
        "properties": {"error": {"type": "object", "required": ["message", "code"], "additionalProperties": false, "properties": {"message": {"type": "string"}, "code": {"type": "integer"}}}}
      },
      "Files": {
        "type": "object", "required": ["files"], "additionalProperties": false,
        "properties": {"files": {"type": "array", "items": {"type": "string", "minLength": 1}, "description": "paths at this rank's host"}}
      },
      "Update": {
        "type": "object", "additionalProperties": false,
        "properties": {
          "ranks": {"type": "array", "nullable": true, "items": {"type": "integer"}, "description": "ranks whose workers are updated; empty: all. The same at every rank"},
          "update_url": {"type": "string", "nullable": true, "description": "engine that this rank calls: http://HOST:PORT/collective_rpc (vLLM), .../update_weights (vLLM's weight transfer), .../update_weights_from_ipc (SGLang); null: take part, call nobody"},
          "inference_group_ranks": {"type": "array", "nullable": true, "items": {"type": "integer"}, "description": "ranks of that engine's instance; empty: all that are updated"},
          "timeout": {"type": "number", "nullable": true, "default": 300.0, "description": "seconds for the whole update"},
          "uds": {"type": "string", "nullable": true, "description": "Unix socket of the engine; the host of update_url is then not looked at"},
          "weight_version": {"type": "string", "nullable": true, "description": "name of the new weights for the engine"},
          "reset_prefix_cache": {"type": "boolean", "nullable": true, "description": "vLLM: drop cached prefixes afterwards"},
          "pause": {"type": "string", "nullable": true, "enum": ["abort", "wait", "keep"], "description": "vLLM: pause the engine meanwhile, in this mode"}
        }
      },
      "Metas": {
        "type": "object", "description": "what each rank holds, by its number; ranks without tensors are left out",
        "additionalProperties": {
          "type": "object", "required": ["p2p_store_addr", "memory_buffer_metas_list", "rdma_device"],
          "properties": {
            "p2p_store_addr": {"type": "string", "description": "to be passed on as it is: name, digests and places"},
            "memory_buffer_metas_list": {"type": "array", "items": {
              "type": "object", "required": ["metas", "ptr", "size"],
              "properties": {
                "metas": {"type": "array", "items": {
                  "type": "object", "required": ["name", "dtype", "shape", "aligned_size"],
                  "properties": {
                    "name": {"type": "string"}, "dtype": {"type": "string", "description": "torch.bfloat16"},
                    "shape": {"type": "array", "items": {"type": "integer"}}, "aligned_size": {"type": "integer", "description": "bytes, up to the next multiple of 256"}
                  }}},
                "ptr": {"type": "integer"}, "size": {"type": "integer"}
              }}},
            "rdma_device": {"type": "string"}
          }
        }
      },
      "ExportedMetas": {
        "type": "object", "required": ["format", "version", "checkpoint", "layouts", "ranks"],
        "properties": {"format": {"type": "string"}, "version": {"type": "integer"}, "checkpoint": {"type": "string"}, "layouts": {"type": "array", "items": {"type": "object"}}, "ranks": {"type": "array", "items": {"type": "object"}}}
      },
      "RunningUpdate": {
        "type": "object", "nullable": true, "additionalProperties": false, "required": ["checkpoint", "seconds", "loaded_bytes", "total_bytes", "workers"],
        "properties": {
          "checkpoint": {"type": "string"}, "seconds": {"type": "number"}, "loaded_bytes": {"type": "integer"}, "total_bytes": {"type": "integer"},
          "workers": {"type": "array", "items": {"type": "object", "required": ["key", "address"], "properties": {"key": {"type": "string"}, "address": {"type": "string"}}}, "description": "of all ranks, once the engines are called"},
          "error": {"type": "string", "nullable": true}
        }
      },
      "Status": {
        "type": "object", "additionalProperties": false, "required": ["rank", "world_size", "operation", "checkpoints", "metas", "update", "last_update"],
        "properties": {
          "rank": {"type": "integer"}, "world_size": {"type": "integer"},
          "operation": {"type": "string", "nullable": true},
          "checkpoints": {"type": "array", "items": {"type": "object", "additionalProperties": false, "required": ["name", "tensors", "bytes"], "properties": {"name": {"type": "string"}, "tensors": {"type": "integer"}, "bytes": {"type": "integer"}}}},
          "metas": {"type": "object", "nullable": true, "additionalProperties": false, "required": ["checkpoint", "loaded"], "properties": {"checkpoint": {"type": "string"}, "loaded": {"type": "boolean"}}},
          "update": {"$ref": "#/components/schemas/RunningUpdate"},
          "last_update": {"$ref": "#/components/schemas/RunningUpdate"}
        }
      }
    }
  }
}
)json";
}

}  // namespace ckpt
