package call

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"fleetd/fleet"
	"fleetd/internal/bounded"
)

// judge closes the call if its approver has lost the right to approve it, or if the gate
// refuses it. If a person can approve the call, it waits instead.
func (a *attempt) judge(ctx context.Context) error {
	if order := a.asked.Firmware; order != nil { // on record even if the gate refuses it
		shown, _ := a.asked.argumentsWith(redactToken(order.URL), a.target.tool)
		a.call.Arguments, a.call.Digests = a.calls.o.Redaction.Redact(a.call.Tool, shown)
	}
	no, err := a.checkApprover(ctx, a.asked)
	if err == nil && no == nil {
		no = a.admit(ctx, a.asked)
	}
	switch {
	case err != nil || no == nil:
	case no.ask != nil && a.calls.o.Approvals != nil:
		a.waitForApproval(*no.ask)
	default:
		a.close(no.state, &no.err)
	}
	return err
}

// admit runs the gate's checks and fills in the arguments of a call that passes.
func (a *attempt) admit(ctx context.Context, r Request) (no *refusal) {
	if no = a.calls.gate.check(a.target, r); no == nil && r.hasURL() {
		a.wire, a.call.Arguments, no = a.fillArguments(ctx, r)
	}
	return no
}

// judgeAgain judges a call that has waited once more, with the caller's current rights and the
// current device, and closes it if it is no longer allowed. After an error it is unknown
// whether the call is allowed.
//
//	the caller is gone                  canceled
//	the device left the caller's scope  canceled
//	the approver lost the right         refused
//	the gate refuses                    refused, for the current reason
//
// The campaign engine judges the calls of campaigns; judgeAgain only reads their devices.
func (a *attempt) judgeAgain() (err error) {
	ctx, cancel := context.WithTimeout(a.calls.life, recordTimeout)
	defer cancel()
	r := a.asked
	r.now, r.again = a.calls.o.Now(), true
	r.Actor, err = a.calls.principalNow(ctx, r.Actor)
	if errors.Is(err, fleet.ErrActorGone) {
		a.close(fleet.CallCanceled, fleet.NewCallError(fleet.CodeActorGone, "actor", a.asked.Actor.Name))
		return nil
	}
	if err != nil {
		return err
	}
	if m := r.Mandate; m != nil && m.Author != nil { // the author of a health check counts as its caller
		author, err := a.calls.principalNow(ctx, *m.Author)
		if errors.Is(err, fleet.ErrActorGone) {
			a.close(fleet.CallCanceled, fleet.NewCallError(fleet.CodeActorGone, "actor", m.Author.Name))
			return nil
		}
		if err != nil {
			return err
		}
		r.Mandate = &Mandate{Askers: m.Askers, Author: &author}
	}
	if a.target, err = a.calls.readTarget(ctx, r); err != nil {
		return err
	}
	if !r.Actor.Sees(a.target.Device) {
		a.close(fleet.CallCanceled, fleet.NewCallError(fleet.CodeOutOfScope, "actor", r.Actor.Name, "device", a.target.Device.Title()))
		return nil
	}
	no, err := a.checkApprover(ctx, r)
	switch {
	case err != nil:
		return err
	case no != nil:
	case r.Firmware != nil:
		no = checkRights(a.target.Device, r)
	case a.wait.kind == deviceWait: // its one-time link is made only now
		no = a.admit(ctx, r)
	default:
		no = a.calls.gate.check(a.target, r)
	}
	if no != nil {
		a.close(no.state, &no.err)
	}
	return nil
}

// A gate decides whether a call may be made. Connections play no part.
type gate struct {
	policy  Policy
	schemas *bounded.Cache[schemaKey, *jsonschema.Resolved]
	passed  *bounded.Cache[passed, struct{}]
	pins    Pins
	held    Quarantines
	running func(fleet.DeviceID) (elf, version string) // see [Options]; may be nil
	digests *fleet.ToolDigests
}

func newGate(o Options) gate {
	return gate{policy: o.Policy, pins: o.Pins, held: o.Quarantines, running: o.Running, digests: fleet.NewToolDigests(),
		schemas: bounded.New[schemaKey, *jsonschema.Resolved](maxSchemas), passed: bounded.New[passed, struct{}](maxPassed)}
}

// A refusal is the gate's refusal of a call, as the outcome of the call.
type refusal struct {
	state fleet.CallState
	err   fleet.CallError
	ask   *Verdict // if set, the call may be made after a person approves it
	stale Stale    // for [CodeApprovalStale]
}

func refuse(e *fleet.CallError) *refusal { return &refusal{state: fleet.CallRefused, err: *e} }

func invalid(e *fleet.CallError) *refusal { return &refusal{state: fleet.CallInvalid, err: *e} }

// check returns nil if the actor may make this call to this device.
func (g *gate) check(t target, r Request) *refusal {
	if no := checkRights(t.Device, r); no != nil {
		return no
	}
	if r.grant != nil {
		if what, differs := r.grant.build.differs(g.build(t)); differs {
			no := refuse(what.refusal(r.Tool))
			no.stale = what
			return no
		}
	}
	if !t.offered {
		return unknownTool(t, r.Tool)
	}
	if r.hasURL() {
		var no *refusal
		if r.Arguments, no = r.argumentsWith(noURL, t.tool); no != nil {
			return no
		}
	}
	for by := range r.judged {
		if no := checkTool(t.tool, by, r); no != nil {
			return no
		}
		if no := g.checkDescription(t.Device, t.Inventory.ID, t.tool, by); no != nil {
			return no
		}
	}
	if no := g.checkArguments(t.Inventory.ID, t.tool, r.Arguments); no != nil {
		return no
	}
	for by := range r.judged {
		if no := g.checkPolicy(t, by, r); no != nil {
			return no
		}
	}
	return nil
}

// checkRights refuses a call of a principal without rights on the device, and any call to a device
// that takes none.
func checkRights(d fleet.Device, r Request) *refusal {
	for by := range r.operators {
		switch role := by.RoleOn(d); {
		case role == "":
			return refuse(fleet.NewCallError(fleet.CodeOutOfScope, "actor", by.Name, "device", d.Title()))
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
	case d.RetiredAt != nil:
		return refuse(fleet.NewCallError("device_retired", "device", d.Title()))
	case d.Enrolment != fleet.EnrolmentEnrolled:
		return refuse(fleet.NewCallError("device_not_enrolled", "device", d.Title()))
	case d.Hold.Active(r.now) && (r.isFanOut() || !d.Hold.By.Same(r.Actor)):
		return refuse(fleet.NewCallError("device_held", "device", d.Title(), "actor", d.Hold.By.Name,
			"reason", d.Hold.Reason))
	}
	return nil
}

func unknownTool(t target, name string) *refusal {
	if t.Inventory == nil {
		return invalid(fleet.NewCallError("no_inventory", "device", t.Device.Title()))
	}
	return invalid(fleet.NewCallError("unknown_tool", "device", t.Device.Title(), "tool", name))
}

// checkDescription refuses a model's call if the device's description of the tool differs from the
// description that an administrator pinned, or, of a tool without a pin, is in quarantine or
// waits for a person: the model may be misled.
func (g *gate) checkDescription(d fleet.Device, inventory string, tool fleet.Tool, by fleet.Principal) *refusal {
	switch {
	case !by.Kind.IsModel():
		return nil
	case g.pins.Pinned(tool.Name):
		if g.pins.Differs(inventory, tool) {
			return refuse(fleet.NewCallError("tool_changed", "tool", tool.Name))
		}
	case g.held.Waits(inventory, tool):
		return refuse(fleet.NewCallError("tool_quarantined.waits", "device", d.Title(), "tool", tool.Name))
	case g.held.Holds(d.ID, inventory, tool):
		return refuse(fleet.NewCallError("tool_quarantined", "device", d.Title(), "tool", tool.Name))
	}
	return nil
}

// Withholds reports whether the gate refuses the principal the tool of a device for its description.
func (s *Service) Withholds(by fleet.Principal, d fleet.Device, tool fleet.Tool) bool {
	return s.gate.checkDescription(d, d.InventoryID, tool, by) != nil
}

// build returns the device's current description of the tool and its firmware. The latest boot
// poll may not be on record yet.
func (g *gate) build(t target) ToolBuild {
	b := ToolBuild{ELF: t.Device.ELFSHA256, Version: t.Device.Version}
	if t.offered {
		b.Tool = g.digests.Of(t.Inventory.ID, t.tool)
	}
	if g.running != nil {
		if elf, version := g.running(t.Device.ID); elf != "" || version != "" {
			b.ELF, b.Version = elf, version
		}
	}
	return b
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

// UserOnlyError returns the refusal of a call that no language model may make. The gate and the
// first rule of the policy both use it.
func UserOnlyError(tool string) *fleet.CallError {
	return fleet.NewCallError("user_only", "tool", tool)
}

func (g *gate) checkPolicy(t target, by fleet.Principal, r Request) *refusal {
	p := proposal(t, by, r)
	p.Again = r.again || r.grant != nil && !r.isFanOut() // a call is counted once: at its request
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

func proposal(t target, by fleet.Principal, r Request) *Proposal {
	return &Proposal{Principal: by, Device: &t.Device, Offers: t.Offers, Tool: t.tool, Arguments: r.Arguments,
		At: r.now, Preview: r.preview}
}

// denial returns the refusal of a call that the policy denies.
func denial(v Verdict) *refusal {
	if v.Reason.Code == "" {
		return refuse(fleet.NewCallError("policy_denied", "rule", v.RuleName))
	}
	return refuse(&fleet.CallError{Code: v.Reason.Code, Params: v.Reason.Params})
}

// A ToolBuild identifies a device's description of a tool and its firmware, for an approval.
// The zero value identifies nothing.
type ToolBuild struct {
	Tool    fleet.ToolDigest
	ELF     string // SHA-256 of the running build; "" if the device does not report it
	Version string
}

// differs reports whether a device has changed since b was recorded, and in what.
func (b ToolBuild) differs(now ToolBuild) (Stale, bool) {
	switch {
	case b.Tool == fleet.ToolDigest{}:
		return StaleUpdate, true
	case b.Tool != now.Tool:
		return StaleTool, true
	}
	return StaleFirmware, b != now
}

// checkArguments validates the arguments against the tool's schema. It also refuses misspelt
// names: a stock device ignores unknown arguments.
func (g *gate) checkArguments(inventory string, tool fleet.Tool, arguments json.RawMessage) *refusal {
	same := passed{inventory, tool.Name, string(arguments)}
	if g.passed.Contains(same) {
		return nil
	}
	args, err := decodeObject(arguments)
	if err != nil {
		return invalid(notAnObject(err))
	}
	schema := g.schema(inventory, tool)
	if schema == nil {
		return nil // the device sent an invalid schema; the device validates the arguments
	}
	for _, name := range slices.Sorted(maps.Keys(args)) {
		if _, known := schema.Schema().Properties[name]; !known {
			return invalid(fleet.NewCallError("invalid_arguments.unknown", "tool", tool.Name, "argument", name))
		}
	}
	if err := schema.Validate(args); err != nil {
		return invalid(explainArguments(schema.Schema(), args, err))
	}
	g.passed.Add(same, struct{}{})
	return nil
}

// fillArguments returns the arguments of a board's call with a URL of fleetd: as sent to the device,
// and as recorded. The token in the URL is secret while the call runs.
func (a *attempt) fillArguments(ctx context.Context, r Request) (wire, shown json.RawMessage, no *refusal) {
	if !a.target.Device.IsBoard() { // its tool only has the name of a board's
		return a.wire, a.call.Arguments, refuse(fleet.NewCallError("not_a_board", "device", r.Device))
	}
	var url string
	var err error
	switch urls, ttl := a.calls.o.URLs, a.call.Timeout+queueTimeout; {
	case r.Firmware != nil:
		url = r.Firmware.URL
	case fleet.ShowsPicture(r.Tool):
		url, err = urls.PreviewURL(ctx, r.Device, a.call.ID, r.Picture, ttl)
	case fleet.LinkOf(r.Tool) == fleet.LinkCoreDump:
		url, err = urls.CoreDumpURL(ctx, r.Device, a.call.ID, ttl)
	default:
		url, err = urls.UploadURL(ctx, r.Device, a.call.ID, ttl)
	}
	if err != nil {
		a.calls.o.Log.Error("no one-time link", "device", r.Device, "tool", r.Tool, "err", err)
		return a.wire, a.call.Arguments, refuse(fleet.NewCallError("link_failed"))
	}
	wire, _ = r.argumentsWith(url, a.target.tool) // the gate accepted them
	if r.Firmware != nil {
		return wire, a.call.Arguments, nil
	}
	record := Request{Arguments: a.shown}
	if shown, no = record.argumentsWith(redactToken(url), a.target.tool); no != nil { // redacted as a whole
		shown = a.shown
	}
	return wire, shown, nil
}

// redactToken shortens the token of ".../u/TOKEN" or ".../d/TOKEN/name".
func redactToken(url string) string {
	for _, marker := range []string{"/u/", "/d/"} {
		if i := strings.Index(url, marker); i >= 0 {
			_, name, _ := strings.Cut(url[i+len(marker):], "/")
			return strings.TrimSuffix(url[:i+len(marker)]+"…/"+name, "/")
		}
	}
	return url
}

// noURL is an invalid URL. The gate judges the arguments with it in place of the URL that
// fleetd will fill in.
const noURL = "http://fleetd.invalid/"

// argumentsWith returns the arguments with the given URL filled in.
func (r *Request) argumentsWith(url string, tool fleet.Tool) (json.RawMessage, *refusal) {
	if r.Firmware != nil {
		return r.Firmware.arguments(tool.InputSchema, url), nil
	}
	given, err := decodeObject(r.Arguments)
	if err != nil {
		return nil, invalid(notAnObject(err))
	}
	if _, set := given["url"]; set {
		return nil, invalid(fleet.NewCallError("url_is_ours"))
	}
	given["url"] = url
	filled, _ := json.Marshal(given) // decoded from JSON
	return filled, nil
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

// checkApprover refuses an approved call if its approver may no longer approve it.
func (a *attempt) checkApprover(ctx context.Context, r Request) (*refusal, error) {
	if r.grant == nil || r.grant.by.Kind == "" {
		return nil, nil
	}
	by, err := a.calls.principalNow(ctx, r.grant.by)
	gone := errors.Is(err, fleet.ErrActorGone)
	if err != nil && !gone {
		return nil, err
	}
	if gone || !by.Scope.AllowsTool(r.Tool) || !by.RoleOn(a.target.Device).Allows(fleet.RoleOperator) {
		return refuse(fleet.NewCallError(CodeApprovalStale+".approver", "tool", r.Tool, "by", r.grant.by.Name)), nil
	}
	return nil, nil
}
