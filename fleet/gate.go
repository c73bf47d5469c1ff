package fleet

import "time"

// A gate decides whether a call may be made. It knows nothing of connections.
type gate struct {
	policy  Policy
	schemas schemaCache
	passed  passedCache
	pins    Pins
	running func(DeviceID) (elf, version string) // see [CallsOptions]; may be nil
	digests ToolDigests
}

// A refusal is the gate's no, as the outcome of a call.
type refusal struct {
	state CallState
	err   CallError
	ask   *Verdict // not nil: the call may be made once a person approves it
	stale Stale    // of [CodeApprovalStale]
}

func refuse(e *CallError) *refusal  { return &refusal{state: CallRefused, err: *e} }
func invalid(e *CallError) *refusal { return &refusal{state: CallInvalid, err: *e} }

// A Mandate says on whose behalf a campaign makes a call. Its principals have the
// rights that they have now: whoever makes the call reads them just before.
type Mandate struct {
	// Askers asked for the campaign. Each must have role operator on the device.
	Askers []Principal
	// Author wrote the call itself into the plan: a health check. It is judged as if
	// the author made it. nil: the call is the campaign's own.
	Author *Principal
}

// ReasonOnBehalf is the code of who asked for the call of a campaign.
const ReasonOnBehalf = "on_behalf"

// BehalfReasons are the codes of [EvidenceOnBehalf] with the names of their parameters.
var BehalfReasons = map[string][]string{ReasonOnBehalf: {"name"}}

// judged are the principals whose kind, tools and policies decide about the call:
// whoever makes it, and the author of a health check. The first refusal holds.
func (r *CallRequest) judged(yield func(Principal) bool) {
	if yield(r.Actor) && r.Mandate != nil && r.Mandate.Author != nil {
		yield(*r.Mandate.Author)
	}
}

// standing are the principals that need role operator on the device: those judged,
// and who asked for the campaign.
func (r *CallRequest) standing(yield func(Principal) bool) {
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
func (m *Mandate) evidence(now time.Time) []Evidence {
	var by Principal
	switch {
	case m.Author != nil:
		by = *m.Author
	case len(m.Askers) > 0:
		by = m.Askers[len(m.Askers)-1]
	default:
		return nil
	}
	why := Because(ReasonOnBehalf, "name", by.Name)
	return []Evidence{{At: now, Kind: EvidenceOnBehalf, Detail: why.String(), Reason: why}}
}

// check returns nil if the actor may make this call to this device.
func (g *gate) check(t *target, r CallRequest) *refusal {
	if no := checkStanding(t, r); no != nil {
		return no
	}
	tool, ok := t.inventory.Tool(r.Tool)
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
		if no := g.checkPin(t.inventory.ID, tool, by); no != nil {
			return no
		}
	}
	if no := g.checkArguments(t.inventory.ID, tool, r.Arguments); no != nil {
		return no
	}
	for by := range r.judged {
		if no := g.checkPolicy(t, tool, by, r); no != nil {
			return no
		}
	}
	return nil
}

func checkStanding(t *target, r CallRequest) *refusal {
	for by := range r.standing {
		switch role := by.RoleOn(t.device); {
		case role == "":
			return refuse(NewCallError(CodeOutOfScope, "actor", by.Name, "device", t.device.Title()))
		case !role.Allows(RoleOperator):
			return refuse(NewCallError("forbidden", "actor", by.Name, "role", role))
		}
	}
	for by := range r.judged {
		if !by.Scope.AllowsTool(r.Tool) {
			return refuse(NewCallError("tool_not_allowed", "actor", by.Name, "tool", CleanText(r.Tool, 80)))
		}
	}
	switch {
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

// checkPin refuses a model's call of a tool that the device describes otherwise than
// it was when an administrator pinned it: what the model knows of it may be wrong.
func (g *gate) checkPin(inventory string, tool Tool, by Principal) *refusal {
	if by.Kind.IsModel() && g.pins.Differs(inventory, tool) {
		return refuse(NewCallError("tool_changed", "tool", CleanText(tool.Name, 80)))
	}
	return nil
}

// build is how the device describes the tool now, and the firmware it runs. Its
// latest boot poll may not be on record yet.
func (g *gate) build(t *target, name string) ToolBuild {
	b := ToolBuild{ELF: t.device.ELFSHA256, Version: t.device.Version}
	if tool, offered := t.inventory.Tool(name); offered {
		b.Tool = g.digests.Of(t.inventory.ID, tool)
	}
	if g.running != nil {
		if elf, version := g.running(t.device.ID); elf != "" || version != "" {
			b.ELF, b.Version = elf, version
		}
	}
	return b
}

func (g *gate) checkPolicy(t *target, tool Tool, by Principal, r CallRequest) *refusal {
	p := proposal(t, tool, by, r)
	p.Again = r.again || r.grant != nil && !r.isFanOut() // a call counts once: when it is asked for
	v := g.policy.Judge(p)
	switch {
	case r.grant != nil && r.grant.policy != v.Version:
		return refuse(StaleCall.refusal(r.Tool))
	case v.Decision == DecisionAllow, v.Decision == DecisionRequireApproval && r.grant != nil:
		return nil
	case v.Decision == DecisionRequireApproval:
		no := refuse(NewCallError("approval_required", "rule", v.RuleName))
		if r.mayAsk() {
			no.ask = &v
		}
		return no
	}
	return denial(v)
}

func proposal(t *target, tool Tool, by Principal, r CallRequest) *Proposal {
	return &Proposal{Principal: by, Device: &t.device, Offers: t.offers, Tool: tool, Arguments: r.Arguments,
		At: r.now, Preview: r.preview}
}

// denial is the refusal of a call that the policy denies.
func denial(v Verdict) *refusal {
	if v.Reason.Code == "" {
		return refuse(NewCallError("policy_denied", "rule", v.RuleName))
	}
	return refuse(&CallError{Code: v.Reason.Code, Params: v.Reason.Params})
}

func unknownTool(t *target, name string) *refusal {
	if t.inventory == nil {
		return invalid(NewCallError("no_inventory", "device", t.device.Title()))
	}
	return invalid(NewCallError("unknown_tool", "device", t.device.Title(), "tool", CleanText(name, 80)))
}

// UserOnlyError is the refusal of a call that a language model may never make,
// whether the gate or the first rule of the policy makes it.
func UserOnlyError(tool string) *CallError {
	return NewCallError("user_only", "tool", CleanText(tool, 80))
}

func checkTool(tool Tool, by Principal, r CallRequest) *refusal {
	switch access := AccessOf(tool.Name); {
	case tool.UserOnly() && by.Kind.IsModel():
		return refuse(UserOnlyError(tool.Name))
	case access == AccessCampaigns && (r.Actor.Kind != KindCampaign || r.Firmware == nil):
		return refuse(NewCallError("use_campaign"))
	case access == AccessNone:
		return refuse(NewCallError("url_not_served"))
	case ShowsPicture(tool.Name) && r.Picture == "":
		return invalid(NewCallError("picture_missing"))
	}
	return nil
}
