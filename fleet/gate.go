package fleet

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
