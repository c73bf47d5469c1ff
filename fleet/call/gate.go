package call

import (
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"fleetd/fleet"
	"fleetd/internal/bounded"
)

// A gate decides whether a call may be made. It knows nothing of connections.
type gate struct {
	policy  Policy
	schemas *bounded.Cache[schemaKey, *jsonschema.Resolved]
	passed  *bounded.Cache[passed, struct{}]
	pins    Pins
	running func(fleet.DeviceID) (elf, version string) // see [Options]; may be nil
	digests *fleet.ToolDigests
}

// A refusal is the gate's no, as the outcome of a call.
type refusal struct {
	state fleet.CallState
	err   fleet.CallError
	ask   *Verdict // not nil: the call may be made once a person approves it
	stale Stale    // of [CodeApprovalStale]
}

func refuse(e *fleet.CallError) *refusal  { return &refusal{state: fleet.CallRefused, err: *e} }
func invalid(e *fleet.CallError) *refusal { return &refusal{state: fleet.CallInvalid, err: *e} }

// A Mandate says on whose behalf a campaign makes a call. Its principals have the
// rights that they have now: whoever makes the call reads them just before.
type Mandate struct {
	// Askers asked for the campaign. Each must have role operator on the device.
	Askers []fleet.Principal
	// Author wrote the call itself into the plan: a health check. It is judged as if
	// the author made it. nil: the call is the campaign's own.
	Author *fleet.Principal
}

// ReasonOnBehalf is the code of who asked for the call of a campaign.
const ReasonOnBehalf = "on_behalf"

// BehalfReasons are the codes of [fleet.EvidenceOnBehalf] with the names of their parameters.
var BehalfReasons = map[string][]string{ReasonOnBehalf: {"name"}}

// judged are the principals whose kind, tools and policies decide about the call:
// whoever makes it, and the author of a health check. The first refusal holds.
func (r *Request) judged(yield func(fleet.Principal) bool) {
	if yield(r.Actor) && r.Mandate != nil && r.Mandate.Author != nil {
		yield(*r.Mandate.Author)
	}
}

// standing are the principals that need role operator on the device: those judged,
// and who asked for the campaign.
func (r *Request) standing(yield func(fleet.Principal) bool) {
	for by := range r.judged {
		if !yield(by) {
			return
		}
	}
	if r.Mandate == nil {
		return
	}
	for _, by := range r.Mandate.Askers {
		if !yield(by) {
			return
		}
	}
}

// evidence says on the call's record on whose behalf it is made: that of its author,
// else of whoever started the campaign, the last of the askers.
func (m *Mandate) evidence(now time.Time) []fleet.Evidence {
	var by fleet.Principal
	switch {
	case m.Author != nil:
		by = *m.Author
	case len(m.Askers) > 0:
		by = m.Askers[len(m.Askers)-1]
	default:
		return nil
	}
	why := fleet.Because(ReasonOnBehalf, "name", by.Name)
	return []fleet.Evidence{{At: now, Kind: fleet.EvidenceOnBehalf, Detail: why.String(), Reason: why}}
}

// check returns nil if the actor may make this call to this device.
func (g *gate) check(t *fleet.Target, r Request) *refusal {
	if no := checkStanding(t, r); no != nil {
		return no
	}
	tool, ok := t.Inventory.Tool(r.Tool)
	if r.grant != nil {
		if what, differs := r.grant.build.differs(g.build(t, r.Tool)); differs {
			no := refuse(what.refusal(r.Tool))
			no.stale = what
			return no
		}
	}
	if !ok {
		return unknownTool(t, r.Tool)
	}
	if r.hasURL() {
		var no *refusal
		if r.Arguments, no = r.argumentsWith(noURL, tool); no != nil {
			return no
		}
	}
	for by := range r.judged {
		if no := checkTool(tool, by, r); no != nil {
			return no
		}
		if no := g.checkPin(t.Inventory.ID, tool, by); no != nil {
			return no
		}
	}
	if no := g.checkArguments(t.Inventory.ID, tool, r.Arguments); no != nil {
		return no
	}
	for by := range r.judged {
		if no := g.checkPolicy(t, tool, by, r); no != nil {
			return no
		}
	}
	return nil
}

func checkStanding(t *fleet.Target, r Request) *refusal {
	for by := range r.standing {
		switch role := by.RoleOn(t.Device); {
		case role == "":
			return refuse(fleet.NewCallError(fleet.CodeOutOfScope, "actor", by.Name, "device", t.Device.Title()))
		case !role.Allows(fleet.RoleOperator):
			return refuse(fleet.NewCallError("forbidden", "actor", by.Name, "role", role))
		}
	}
	for by := range r.judged {
		if !by.Scope.AllowsTool(r.Tool) {
			return refuse(fleet.NewCallError("tool_not_allowed", "actor", by.Name, "tool", r.Tool))
		}
	}
	switch {
	case t.Device.RetiredAt != nil:
		return refuse(fleet.NewCallError("device_retired", "device", t.Device.Title()))
	case t.Device.Enrolment != fleet.EnrolmentEnrolled:
		return refuse(fleet.NewCallError("device_not_enrolled", "device", t.Device.Title()))
	case t.Device.Hold.Active(r.now) && (r.isFanOut() || !t.Device.Hold.By.Same(r.Actor)):
		return refuse(fleet.NewCallError("device_held", "device", t.Device.Title(), "actor", t.Device.Hold.By.Name,
			"reason", t.Device.Hold.Reason))
	}
	return nil
}

// checkPin refuses a model's call of a tool that the device describes otherwise than
// it was when an administrator pinned it: what the model knows of it may be wrong.
func (g *gate) checkPin(inventory string, tool fleet.Tool, by fleet.Principal) *refusal {
	if by.Kind.IsModel() && g.pins.Differs(inventory, tool) {
		return refuse(fleet.NewCallError("tool_changed", "tool", tool.Name))
	}
	return nil
}

// build is how the device describes the tool now, and the firmware it runs. Its
// latest boot poll may not be on record yet.
func (g *gate) build(t *fleet.Target, name string) ToolBuild {
	b := ToolBuild{ELF: t.Device.ELFSHA256, Version: t.Device.Version}
	if tool, offered := t.Inventory.Tool(name); offered {
		b.Tool = g.digests.Of(t.Inventory.ID, tool)
	}
	if g.running != nil {
		if elf, version := g.running(t.Device.ID); elf != "" || version != "" {
			b.ELF, b.Version = elf, version
		}
	}
	return b
}

func (g *gate) checkPolicy(t *fleet.Target, tool fleet.Tool, by fleet.Principal, r Request) *refusal {
	p := proposal(t, tool, by, r)
	p.Again = r.again || r.grant != nil && !r.isFanOut() // a call counts once: when it is asked for
	v := g.policy.Judge(p)
	switch {
	case r.grant != nil && r.grant.policy != v.Version:
		return refuse(StaleCall.refusal(r.Tool))
	case v.Decision == DecisionAllow, v.Decision == DecisionRequireApproval && r.grant != nil:
		return nil
	case v.Decision == DecisionRequireApproval:
		no := refuse(fleet.NewCallError("approval_required", "rule", v.RuleName))
		if r.mayAsk() {
			no.ask = &v
		}
		return no
	}
	return denial(v)
}

func proposal(t *fleet.Target, tool fleet.Tool, by fleet.Principal, r Request) *Proposal {
	return &Proposal{Principal: by, Device: &t.Device, Offers: t.Offers, Tool: tool, Arguments: r.Arguments,
		At: r.now, Preview: r.preview}
}

// denial is the refusal of a call that the policy denies.
func denial(v Verdict) *refusal {
	if v.Reason.Code == "" {
		return refuse(fleet.NewCallError("policy_denied", "rule", v.RuleName))
	}
	return refuse(&fleet.CallError{Code: v.Reason.Code, Params: v.Reason.Params})
}

func unknownTool(t *fleet.Target, name string) *refusal {
	if t.Inventory == nil {
		return invalid(fleet.NewCallError("no_inventory", "device", t.Device.Title()))
	}
	return invalid(fleet.NewCallError("unknown_tool", "device", t.Device.Title(), "tool", name))
}

// UserOnlyError is the refusal of a call that a language model may never make,
// whether the gate or the first rule of the policy makes it.
func UserOnlyError(tool string) *fleet.CallError {
	return fleet.NewCallError("user_only", "tool", tool)
}

func checkTool(tool fleet.Tool, by fleet.Principal, r Request) *refusal {
	switch access := fleet.AccessOf(tool.Name); {
	case tool.UserOnly() && by.Kind.IsModel():
		return refuse(UserOnlyError(tool.Name))
	case access == fleet.AccessCampaigns && (r.Actor.Kind != fleet.KindCampaign || r.Firmware == nil):
		return refuse(fleet.NewCallError("use_campaign"))
	case access == fleet.AccessNone:
		return refuse(fleet.NewCallError("url_not_served"))
	case fleet.ShowsPicture(tool.Name) && r.Picture == "":
		return invalid(fleet.NewCallError("picture_missing"))
	}
	return nil
}
