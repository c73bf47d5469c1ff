package fleet

import "fmt"

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

func refuse(code, format string, args ...any) *refusal {
	return &refusal{CallRefused, CallError{Code: code, Message: fmt.Sprintf(format, args...)}}
}

func invalid(code, format string, args ...any) *refusal {
	return &refusal{CallInvalid, CallError{Code: code, Message: fmt.Sprintf(format, args...)}}
}

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
		return refuse("forbidden", "calling tools needs the role operator; %s has %s", r.Actor.Name, r.Actor.Role)
	case t.device.RetiredAt != nil:
		return refuse("device_retired", "%s was retired", t.device.Title())
	case t.device.Enrolment != EnrolmentEnrolled:
		return refuse("device_not_enrolled", "%s is not enrolled; approve or claim it first", t.device.Title())
	case t.device.Hold.Active(r.now) && (r.isFanOut() || !t.device.Hold.By.Same(r.Actor)):
		return refuse("device_held", "%s is held by %s: %s", t.device.Title(), t.device.Hold.By.Name, t.device.Hold.Reason)
	}
	return nil
}

func unknownTool(t *target, name string) *refusal {
	if t.inventory == nil {
		return invalid("no_inventory", "%s has not listed its tools yet; it does so when it connects", t.device.Title())
	}
	return invalid("unknown_tool", "%s offers no tool %.80q", t.device.Title(), name)
}

func checkTool(tool Tool, r CallRequest) *refusal {
	known := knownTools[tool.Name]
	switch {
	case tool.UserOnly() && r.Actor.Kind == ActorLLM:
		return refuse("user_only", "%s is for people; a language model may not call it", tool.Name)
	case known.access == forCampaigns && (r.Actor.Kind != ActorCampaign || r.Firmware == nil):
		return refuse("use_campaign", "firmware is installed by a campaign, which checks the image and watches the outcome")
	case known.access == forNone:
		return refuse("url_not_served", "fleetd serves no assets, and hands devices no addresses but its own")
	case known.url == LinkPreview && r.Picture == "":
		return invalid("picture_missing", "choose the picture that the device shall show")
	}
	return nil
}
