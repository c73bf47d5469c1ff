package call

import (
	"context"

	"fleetd/fleet"
)

// A Preview is the expected result of a call, determined without making it.
type Preview struct {
	Device fleet.Device
	// Verdict is the policy's verdict, even if the gate refuses the call before it queries the
	// policy. Its Decision is "" if the device does not offer the tool.
	Verdict Verdict
	// Refusals are all refusals of the gate, in its order: the call would end with the first.
	Refusals []fleet.CallError
	// Wire is the call that would be sent, now or after its approval; nil if none would be.
	Wire *WireCall
}

// A WireCall is a call as it is written to a device.
type WireCall struct {
	ID        int32  // of the JSON-RPC request
	NextID    bool   // ID is the one of the device's next call; false: a placeholder
	Connected bool   // otherwise the call would end as offline
	OwnURL    bool   // the argument url is a placeholder for a one-time link
	Request   []byte // the JSON-RPC request
	Message   []byte // the whole message: the request in its envelope
}

// An Encoder encodes calls as a device receives them, and sends nothing. An error is the
// refusal of a call that cannot be sent to the device. The broker implements it.
type Encoder interface {
	EncodeCall(id fleet.DeviceID, inv fleet.Invocation) (WireCall, error)
}

// Preview judges a call to each of the given devices as [Service.Make] does, but goes on after
// a refusal to find all of them. Nothing is counted, recorded or sent. Ids of unknown devices
// are skipped.
func (s *Service) Preview(ctx context.Context, r Request, ids []fleet.DeviceID) ([]Preview, error) {
	r.now, r.preview = s.o.Now(), true
	if err := checkRequest(r); err != nil {
		return nil, err
	}
	targets, err := s.o.Targets.Load(ctx, ids, r.now)
	if err != nil {
		return nil, err
	}
	var all []Preview
	for _, id := range ids {
		if t := targets[id]; t != nil {
			r.Device = id
			all = append(all, s.preview(targetOf(t, r.Tool), r))
		}
	}
	return all, nil
}

func (s *Service) preview(t target, r Request) Preview {
	p := Preview{Device: t.Device}
	if !r.Actor.Sees(t.Device) {
		p.refuse(refuse(fleet.NewCallError("out_of_scope", "actor", r.Actor.Name, "device", t.Device.Title())))
		return p
	}
	p.refuse(checkRights(t.Device, r))
	if !t.offered {
		p.refuse(unknownTool(t, r.Tool))
		return p
	}
	if r.hasURL() {
		var no *refusal
		if r.Arguments, no = r.argumentsWith(noURL, t.tool); no != nil {
			p.refuse(no)
			return p
		}
	}
	p.refuse(checkTool(t.tool, r.Actor, r))
	p.refuse(s.gate.checkDescription(t.Device, t.Inventory.ID, t.tool, r.Actor))
	p.refuse(s.gate.checkArguments(t.Inventory.ID, t.tool, r.Arguments))
	p.Verdict = s.gate.policy.Judge(proposal(t, r.Actor, r))
	if p.Verdict.Decision == DecisionDeny {
		p.refuse(denial(p.Verdict))
	}
	if len(p.Refusals) > 0 || s.o.Encoder == nil {
		return p
	}
	wire, err := s.o.Encoder.EncodeCall(r.Device, fleet.Invocation{Tool: r.Tool, Arguments: r.Arguments,
		ForOperator: !r.Actor.Kind.IsModel()})
	if err != nil {
		p.refuse(invalid(fleet.NewCallError("unsendable.cause", "cause", fleet.CauseOf(err))))
		return p
	}
	wire.OwnURL = fleet.OwnsURL(r.Tool)
	p.Wire = &wire
	return p
}

// refuse adds a refusal, if any. Each code is added once: the gate and the policy both refuse
// user-only tools to models.
func (p *Preview) refuse(no *refusal) {
	if no == nil {
		return
	}
	for _, had := range p.Refusals {
		if had.Code == no.err.Code {
			return
		}
	}
	p.Refusals = append(p.Refusals, no.err)
}
