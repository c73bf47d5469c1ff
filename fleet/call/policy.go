package call

import (
	"encoding/json"
	"time"

	"fleetd/fleet"
)

// A Policy judges calls that role, hold and tool allow. It has no side effects other than
// counting, and returns within microseconds: every call waits for it.
type Policy interface {
	Judge(p *Proposal) Verdict
}

// A Proposal is the call that a policy judges.
type Proposal struct {
	Principal fleet.Principal
	Device    *fleet.Device
	Offers    fleet.ToolSet
	Tool      fleet.Tool
	Arguments json.RawMessage // a JSON object; nil means {}
	At        time.Time
	// Preview is true if a person only asks for a preview: nothing counts against a rate or a
	// budget.
	Preview bool
	// Again is true if a call is judged once more before it is sent: it was already counted,
	// and does not count twice.
	Again bool
}

// A Decision is a policy's decision about a call.
type Decision string

const (
	DecisionAllow           Decision = "allow"
	DecisionDeny            Decision = "deny"
	DecisionRequireApproval Decision = "require_approval"
)

// A Verdict is a policy's decision with its origin.
type Verdict struct {
	Decision Decision
	Rule     string // id of the rule that decided
	RuleName string
	Version  int64        // of the policy; an approval is valid for one version
	Reason   fleet.Reason // of a denial: the code and parameters of the refusal
	// ApprovalTTL is how long a call waits for its approval. 0: [DefaultApprovalTTL]
	ApprovalTTL time.Duration
}
