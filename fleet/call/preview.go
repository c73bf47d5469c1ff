package call

import (
	"context"

	"fleetd/fleet"
)

// A CallPreview says what a call would come to, without making it.
type Preview struct {
	Device fleet.Device
	// Verdict is the policy's, also where the gate refuses the call before it asks.
	// Its Decision is "" if the device does not offer the tool.
	Verdict Verdict
	// Refusals are all of the gate, in its order: the call would end with the first.
	Refusals []fleet.CallError
	// Wire is what would be sent, now or once the call is approved; nil if nothing
	// would be.
	Wire *WireCall
}

// A WireCall is a call as it is written to a device.
type WireCall struct {
	ID        int32  // of the JSON-RPC request
	NextID    bool   // ID is the one that the device's next call gets; false: it is a placeholder
	Connected bool   // else the call would end offline
	OwnURL    bool   // the argument url is a placeholder for a one-time address
	Request   []byte // the JSON-RPC request
	Message   []byte // the whole message: the request in its envelope
}

// A CallEncoder writes calls as they go to a device, and sends nothing. An error
// is the refusal of a call that cannot be put to the device. The broker
// implements it.
type Encoder interface {
	EncodeCall(id fleet.DeviceID, inv fleet.Invocation) (WireCall, error)
}

// Preview asks the gate about a call to each of some devices as [Service.Make]
// does, and goes on where that would end: it finds every refusal. Nothing is
// counted, recorded or sent. Ids that name no device are left out.
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
			all = append(all, s.preview(t, r))
		}
	}
	return all, nil
}

func (s *Service) preview(t *fleet.Target, r Request) Preview {
	p := Preview{Device: t.Device}
	if !r.Actor.Sees(t.Device) {
		p.refuse(refuse(fleet.NewCallError("out_of_scope", "actor", r.Actor.Name, "device", t.Device.Title())))
		return p
	}
	p.refuse(checkStanding(t, r))
	tool, offered := t.Inventory.Tool(r.Tool)
	if !offered {
		p.refuse(unknownTool(t, r.Tool))
		return p
	}
	if r.hasURL() {
		var no *refusal
		if r.Arguments, no = r.argumentsWith(noURL, tool); no != nil {
			p.refuse(no)
			return p
		}
	}
	p.refuse(checkTool(tool, r.Actor, r))
	p.refuse(s.gate.checkPin(t.Inventory.ID, tool, r.Actor))
	p.refuse(s.gate.checkArguments(t.Inventory.ID, tool, r.Arguments))
	p.Verdict = s.gate.policy.Judge(proposal(t, tool, r.Actor, r))
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

// refuse adds a refusal, if there is one. One code is named once: the gate and the
// policy both refuse user-only tools to models.
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
