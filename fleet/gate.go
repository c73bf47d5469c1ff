package fleet

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"
)

// A gate decides whether a call may be made. It knows nothing of connections.
type gate struct {
	schemas schemaCache
	passed  passedCache
}

// A refusal is the gate's no, as the outcome of a call.
type refusal struct {
	state CallState
	err   CallError
}

func refuse(e *CallError) *refusal  { return &refusal{CallRefused, *e} }
func invalid(e *CallError) *refusal { return &refusal{CallInvalid, *e} }

// check returns nil if the actor may make this call to this device.
func (g *gate) check(t *target, r CallRequest) *refusal {
	if no := checkStanding(t, r); no != nil {
		return no
	}
	tool, ok := t.inventory.Tool(r.Tool)
	if !ok {
		return unknownTool(t, r.Tool)
	}
	if no := checkTool(tool, r); no != nil {
		return no
	}
	return g.checkArguments(t.inventory.ID, tool, r.Arguments)
}

func checkStanding(t *target, r CallRequest) *refusal {
	switch {
	case !r.Actor.Role.Allows(RoleOperator):
		return refuse(NewCallError("forbidden", "actor", r.Actor.Name, "role", r.Actor.Role))
	case t.device.RetiredAt != nil:
		return refuse(NewCallError("device_retired", "device", t.device.Title()))
	case t.device.Enrolment != EnrolmentEnrolled:
		return refuse(NewCallError("device_not_enrolled", "device", t.device.Title()))
	case t.device.Hold.Active(r.now) && (r.isFanOut() || !t.device.Hold.By.Same(r.Actor)):
		return refuse(NewCallError("device_held", "device", t.device.Title(), "actor", t.device.Hold.By.Name,
			"reason", t.device.Hold.Reason))
	}
	return nil
}

func unknownTool(t *target, name string) *refusal {
	if t.inventory == nil {
		return invalid(NewCallError("no_inventory", "device", t.device.Title()))
	}
	return invalid(NewCallError("unknown_tool", "device", t.device.Title(), "tool", CleanText(name, 80)))
}

func checkTool(tool Tool, r CallRequest) *refusal {
	known := knownTools[tool.Name]
	switch {
	case tool.UserOnly() && r.Actor.Kind == ActorLLM:
		return refuse(NewCallError("user_only", "tool", tool.Name))
	case known.access == forCampaigns && (r.Actor.Kind != ActorCampaign || r.Firmware == nil):
		return refuse(NewCallError("use_campaign"))
	case known.access == forNone:
		return refuse(NewCallError("url_not_served"))
	case known.url == LinkPreview && r.Picture == "":
		return invalid(NewCallError("picture_missing"))
	}
	return nil
}

// checkArguments holds the arguments against the tool's own schema, and against
// typing errors: a stock device ignores an argument it does not know.
func (g *gate) checkArguments(inventory string, tool Tool, arguments json.RawMessage) *refusal {
	same := passed{inventory, tool.Name, string(arguments)}
	if g.passed.has(same) {
		return nil
	}
	args, err := decodeObject(arguments)
	if err != nil {
		return invalid(notAnObject(err))
	}
	schema := g.schemas.of(inventory, tool)
	if schema == nil {
		return nil // the device sent a schema that is none; it judges for itself
	}
	for _, name := range slices.Sorted(maps.Keys(args)) {
		if _, known := schema.Schema().Properties[name]; !known {
			return invalid(NewCallError("invalid_arguments.unknown", "tool", tool.Name, "argument", CleanText(name, 60)))
		}
	}
	if err := schema.Validate(args); err != nil {
		return invalid(explainArguments(schema.Schema(), args, err))
	}
	g.passed.add(same)
	return nil
}

func decodeObject(raw json.RawMessage) (map[string]any, error) {
	args := map[string]any{}
	if len(raw) == 0 {
		return args, nil
	}
	err := json.Unmarshal(raw, &args)
	if err == nil && args == nil {
		err = fmt.Errorf("null is none")
	}
	return args, err
}

// A schemaCache keeps compiled schemas by inventory and tool. Inventories are
// few, since equal devices share one; the bound is for hostile ones.
type schemaCache struct {
	mu sync.RWMutex
	m  map[schemaKey]*jsonschema.Resolved
}

type schemaKey struct{ inventory, tool string }

const maxSchemas = 20_000

// of returns the compiled schema of the tool, nil if it is not a valid one.
func (c *schemaCache) of(inventory string, tool Tool) *jsonschema.Resolved {
	key := schemaKey{inventory, tool.Name}
	c.mu.RLock()
	s, ok := c.m[key]
	c.mu.RUnlock()
	if ok {
		return s
	}
	s = compileSchema(tool.InputSchema)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil || len(c.m) >= maxSchemas {
		c.m = make(map[schemaKey]*jsonschema.Resolved)
	}
	c.m[key] = s
	return s
}

func compileSchema(raw json.RawMessage) *jsonschema.Resolved {
	if !boundedSchema(raw) {
		return nil
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil
	}
	resolved, err := s.Resolve(nil) // without a loader: nothing is fetched for a device
	if err != nil {
		return nil
	}
	return resolved
}

// A passedCache remembers arguments that fitted their schema: a fan-out and a
// script make the same call many times over.
type passedCache struct {
	mu sync.RWMutex
	m  map[passed]struct{}
}

type passed struct{ inventory, tool, arguments string }

// maxPassed bounds the cache; with [MaxArgumentBytes] it takes 6 MB at most.
const maxPassed = 2000

func (c *passedCache) has(p passed) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	_, ok := c.m[p]
	return ok
}

func (c *passedCache) add(p passed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil || len(c.m) >= maxPassed {
		c.m = make(map[passed]struct{})
	}
	c.m[p] = struct{}{}
}

// Tools of the included firmware that fleetd treats in a way of its own.
const (
	ToolRollback       = "self.rollback"
	ToolConfigGet      = "self.config.get"
	ToolConfigSet      = "self.config.set"
	ToolLogsTail       = "self.logs.tail"
	ToolLogsLevel      = "self.logs.set_level"
	ToolLogsStream     = "self.logs.stream"
	ToolCoreDumpInfo   = "self.core_dump.get_info"
	ToolCoreDumpUpload = "self.core_dump.upload"
)
