package fleet

// A gate decides whether a call may be made. It knows nothing of connections.
type gate struct {
	policy  Policy
	schemas schemaCache
	passed  passedCache
	pins    *ToolPins
	running func(DeviceID) (elf, version string) // see [CallsOptions]; may be nil
	digests digestCache
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
	if no := checkTool(tool, r); no != nil {
		return no
	}
	if no := g.checkPin(t.inventory.ID, tool, r); no != nil {
		return no
	}
	if no := g.checkArguments(t.inventory.ID, tool, r.Arguments); no != nil {
		return no
	}
	return g.checkPolicy(t, tool, r)
}

func checkStanding(t *target, r CallRequest) *refusal {
	switch {
	case !r.Actor.RoleOn(t.device).Allows(RoleOperator):
		return refuse(NewCallError("forbidden", "actor", r.Actor.Name, "role", r.Actor.RoleOn(t.device)))
	case !r.Actor.Scope.AllowsTool(r.Tool):
		return refuse(NewCallError("tool_not_allowed", "actor", r.Actor.Name, "tool", CleanText(r.Tool, 80)))
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
func (g *gate) checkPin(inventory string, tool Tool, r CallRequest) *refusal {
	if r.Actor.Kind.IsModel() && g.pins.Differs(inventory, tool) {
		return refuse(NewCallError("tool_changed", "tool", CleanText(tool.Name, 80)))
	}
	return nil
}

// build is how the device describes the tool now, and the firmware it runs. Its
// latest boot poll may not be on record yet.
func (g *gate) build(t *target, name string) ToolBuild {
	b := ToolBuild{ELF: t.device.ELFSHA256, Version: t.device.Version}
	if tool, offered := t.inventory.Tool(name); offered {
		b.Tool = g.digests.of(t.inventory.ID, tool)
	}
	if g.running != nil {
		if elf, version := g.running(t.device.ID); elf != "" || version != "" {
			b.ELF, b.Version = elf, version
		}
	}
	return b
}

func (g *gate) checkPolicy(t *target, tool Tool, r CallRequest) *refusal {
	p := proposal(t, tool, r)
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

func proposal(t *target, tool Tool, r CallRequest) *Proposal {
	return &Proposal{Principal: r.Actor, Device: &t.device, Offers: t.offers, Tool: tool, Arguments: r.Arguments,
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

func checkTool(tool Tool, r CallRequest) *refusal {
	known := knownTools[tool.Name]
	switch {
	case tool.UserOnly() && r.Actor.Kind.IsModel():
		return refuse(UserOnlyError(tool.Name))
	case known.access == forCampaigns && (r.Actor.Kind != KindCampaign || r.Firmware == nil):
		return refuse(NewCallError("use_campaign"))
	case known.access == forNone:
		return refuse(NewCallError("url_not_served"))
	case known.url == LinkPreview && r.Picture == "":
		return invalid(NewCallError("picture_missing"))
	}
	return nil
}
