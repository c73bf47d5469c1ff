package fleet

import (
	"context"
	"fmt"
)

// Offered returns a device and, of the tools on record for it, those that the
// principal could call now: what is for people is hidden from language models,
// and what scope or policy denies from everyone. A hold hides nothing, since it
// ends. The tools are in the device's order; they are shared, not to be changed.
func (s *Calls) Offered(ctx context.Context, p Principal, id DeviceID) (Device, []Tool, error) {
	now := s.o.Now()
	t, err := s.o.Targets.get(ctx, id, now)
	if err != nil {
		return Device{}, nil, err
	}
	if !p.Sees(t.device) {
		return Device{}, nil, fmt.Errorf("device %s: %w", id, ErrNotFound)
	}
	if t.inventory == nil || !p.RoleOn(t.device).Allows(RoleOperator) {
		return t.device, nil, nil
	}
	var offered []Tool
	for _, tool := range t.inventory.Tools {
		switch {
		case tool.UserOnly() && p.Kind.IsModel(), knownTools[tool.Name].access != forAudience,
			!p.Scope.AllowsTool(tool.Name):
			continue
		}
		v := s.gate.policy.Judge(&Proposal{Principal: p, Device: &t.device, Tool: tool, At: now, Preview: true})
		if v.Decision != DecisionDeny {
			offered = append(offered, tool)
		}
	}
	return t.device, offered, nil
}
