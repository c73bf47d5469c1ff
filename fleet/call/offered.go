package call

import (
	"context"
	"encoding/json"
	"fmt"

	"fleetd/fleet"
)

// Offered returns a device and the recorded tools that the principal could call now. User-only
// tools are hidden from language models, and tools that scope or policy denies are hidden from
// everyone. An operator's hold hides nothing, because it ends. The tools are in the device's
// order; they are shared and must not be changed.
func (s *Service) Offered(ctx context.Context, p fleet.Principal, id fleet.DeviceID) (fleet.Device, []fleet.Tool,
	error) {
	r := Request{Actor: p, Device: id, now: s.o.Now(), preview: true}
	t, err := s.o.Targets.Get(ctx, id, r.now)
	if err != nil {
		return fleet.Device{}, nil, err
	}
	if !p.Sees(t.Device) {
		return fleet.Device{}, nil, fmt.Errorf("device %s: %w", id, fleet.ErrNotFound)
	}
	if t.Inventory == nil || !p.RoleOn(t.Device).Allows(fleet.RoleOperator) {
		return t.Device, nil, nil
	}
	var offered []fleet.Tool
	for _, tool := range t.Inventory.Tools {
		if tool.UserOnly() && p.Kind.IsModel() || fleet.AccessOf(tool.Name) != fleet.AccessAudience ||
			!p.Scope.AllowsTool(tool.Name) || s.Withholds(p, t.Device, tool) {
			continue
		}
		if s.gate.deniesAlways(target{t, tool, true}, r) {
			continue
		}
		offered = append(offered, tool)
	}
	return t.Device, offered, nil
}

// deniesAlways reports whether the policy denies the tool for all tried arguments: none, and
// the lowest and the highest values of its schema. A tool for which a rule denies only some
// arguments is not hidden.
func (g *gate) deniesAlways(t target, r Request) bool {
	for _, arguments := range append([]json.RawMessage{nil}, sampleArguments(t.tool.InputSchema)...) {
		r.Arguments = arguments
		if g.policy.Judge(proposal(t, r.Actor, r)).Decision != DecisionDeny {
			return false
		}
	}
	return true
}

// sampleArguments returns two sets of arguments for the kinds of parameters of stock firmware,
// or none for a tool without parameters.
func sampleArguments(schema json.RawMessage) []json.RawMessage {
	var s struct {
		Properties map[string]struct {
			Type             string
			Default          any
			Minimum, Maximum *json.Number
		}
	}
	if json.Unmarshal(schema, &s) != nil || len(s.Properties) == 0 {
		return nil
	}
	least, greatest := make(map[string]any, len(s.Properties)), make(map[string]any, len(s.Properties))
	for name, p := range s.Properties {
		switch {
		case p.Type == "boolean":
			least[name], greatest[name] = false, true
		case p.Minimum != nil && p.Maximum != nil:
			least[name], greatest[name] = *p.Minimum, *p.Maximum
		case p.Default != nil:
			least[name], greatest[name] = p.Default, p.Default
		case p.Type == "integer":
			least[name], greatest[name] = 0, 1
		default:
			least[name], greatest[name] = "", "a"
		}
	}
	var samples []json.RawMessage
	for _, sample := range []map[string]any{least, greatest} {
		if text, err := json.Marshal(sample); err == nil {
			samples = append(samples, text)
		}
	}
	return samples
}
