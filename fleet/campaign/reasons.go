package campaign

// Codes of the reasons that campaigns put on record: why a deployment failed or what it waits
// for, why a campaign stopped, how a wave was judged, and details of evidence. [Reasons] lists
// their parameters; pages make the text from them.
const (
	// What a deployment waits for.
	ReasonAwaitsReport        = "awaiting_report"       // runs its old build; the device reports why
	ReasonAwaitsPollAfter     = "restart_ordered"       // in order that it polls: once per attempt
	ReasonAwaitsConnection    = "soaked_not_connected"  // the soak is over
	ReasonAwaitsChecks        = "soaked_not_checked"    // the soak is over
	ReasonMayStillFetch       = "may_still_fetch"       // ambiguous
	ReasonStoppedWhileSending = "stopped_while_sending" // ambiguous: fleetd stopped
	ReasonUnconfirmed         = "running_unconfirmed"   // runs the image, but has not polled: stock firmware falls back
	ReasonPollUnseen          = "running_poll_unseen"   // the same for a device that does not need the poll
	ReasonNotSent             = "call_not_sent"         // the call's error
	ReasonInterrupted         = "restarted_in_download" // fleetd restarted
	ReasonLegacyText          = "legacy"                // text from before there were codes
	ReasonRequeuedBy          = "retry_asked"           // event: by an operator
	ReasonSkippedFor          = "skipped"               // event: a [firmware.SkipReason]
	ReasonWaveNamed           = "wave"                  // event: the wave that opened
	ReasonAddress             = "address"               // event: of a connection
	ReasonConnectionEnded     = "connection_ended"      // event: the end that the connection reported
	ReasonAnswered            = "answered"              // event: the device's answer
	ReasonCallFailed          = "call_failed"           // event: the call's error
	ReasonToolRefused         = "tool_refused"          // event: the device's refusal, with its code
	ReasonToolRefusedText     = "tool_refused_text"     // event: the device's refusal, without one
	ReasonJobAccepted         = "job_accepted"          // event: the device's report
	ReasonJobProgress         = "job_progress"          // event
	ReasonJobDone             = "job_done"              // event
	ReasonJobFailed           = "job_failed"            // event

	// Why a deployment ended, or its attempt did.
	ReasonRetired         = "device_retired"
	ReasonMisfit          = "does_not_fit"
	ReasonLinkRevoked     = "link_revoked"
	ReasonNoRoom          = "device_busy"
	ReasonOtherBuild      = "other_build"
	ReasonRolledBack      = "rolled_back"
	ReasonRestartedEarly  = "restarted_early" // during the download
	ReasonTooSlow         = "download_too_slow"
	ReasonStalled         = "download_stalled"
	ReasonBrokeOff        = "download_broke_off"
	ReasonBrokeOffBecause = "download_broke_off_because"
	ReasonCallRefused     = "call_refused" // the device answered with an error without text
	ReasonNoPollBecause   = "no_boot_poll_because"
	ReasonNoPoll          = "no_boot_poll"
	ReasonImageRefused    = "image_refused"
	ReasonOfferIgnored    = "offer_not_fetched"
	ReasonNotFetched      = "not_fetched"
	ReasonNeverConnected  = "never_connected"
	ReasonCheckFailed     = "check_failed" // no details known
	ReasonNoConnection    = "verifying_no_connection"
	ReasonNoAnswer        = "verifying_no_answer"
	ReasonFlapping        = "reconnected_too_often"
	ReasonDeviceReported  = "device_reported" // its own text
	ReasonDeviceFailed    = "device_failed"   // it reported a failure without text or code
	ReasonBusyIn          = "busy_in_campaign"
	ReasonFitBusy         = "fit_busy" // at planning
	ReasonTakenOver       = "taken_over"
	ReasonCampaignAborted = "campaign_aborted"
	ReasonTimeUp          = "campaign_time_up"
	ReasonImageRevoked    = "image_revoked"

	ReasonOutOfScope = "out_of_scope" // the maker or starter of the campaign is no longer operator there
	ReasonOutOfPlan  = "out_of_plan"  // the filter of the plan's maker no longer covers it

	// Why a device is in quarantine.
	ReasonFailedAttempts = "failed_attempts"

	// Why a campaign stopped or ended.
	ReasonByOperator       = "by_operator" // the operator's text
	ReasonAbortedBy        = "aborted_by"
	ReasonRuleFirst        = "abort_rule_first"
	ReasonRuleShare        = "abort_rule_share"
	ReasonRuleBound        = "abort_rule_bound"
	ReasonRuleFired        = "abort_rule" // from versions that used the share of the verdicts; with its limits
	ReasonScopeOfAll       = "scope_campaign"
	ReasonScopeOfWave      = "scope_wave"
	ReasonScopeOfNamedWave = "scope_wave_named"
	ReasonScopeOfBoard     = "scope_board"
	ReasonScopeOfNoBoard   = "scope_board_unnamed"
	ReasonLimitFirst       = "limit_first"
	ReasonLimitShare       = "limit_share"
	ReasonNoWindow         = "no_window"
	ReasonNextWindowOpens  = "next_window"
	ReasonReleaseRevoked   = "release_revoked"
	ReasonReleaseGone      = "release_gone"
	ReasonImageWasRevoked  = "image_was_revoked"
	ReasonImageGone        = "image_gone"
	ReasonPlanChanged      = "plan_changed"   // its rows differ from the plan that was approved
	ReasonPlanUnchecked    = "plan_unchecked" // an earlier version planned it: its images are not on record
	// The difference between the rows and the plan.
	ReasonPlanDiffersField    = "plan_differs_field"
	ReasonPlanDiffersImage    = "plan_differs_image"
	ReasonPlanDiffersDevice   = "plan_differs_device"
	ReasonPlanDiffersImages   = "plan_differs_images"
	ReasonPlanDiffersDigest   = "plan_differs_digest"
	ReasonPlanDiffersApproval = "plan_differs_approval"

	ReasonImageWithheld = "image_withheld" // see [firmware.Checker]
	ReasonWavePassed    = "wave_passed"
	ReasonWaveIsBad     = "wave_failed"
	ReasonWaveIsBadGate = "wave_failed_gate"

	ReasonActorGone       = "actor_gone" // the maker or starter
	ReasonActorNoOperator = "actor_no_operator"

	// Why a requested rollback was not made, or not for every device.
	ReasonRollbackNothing  = "rollback_nothing"
	ReasonRollbackUnderWay = "rollback_under_way"
	ReasonRollbackWaits    = "rollback_waits"
	ReasonRollbackPartly   = "rollback_partly"
	ReasonRollbackRefused  = "rollback_refused"

	// How a wave was judged.
	ReasonWaveEmpty       = "wave_empty"
	ReasonWaveNoVerdict   = "wave_no_verdict"
	ReasonWaveHopeless    = "wave_hopeless"
	ReasonWaveUnderWay    = "wave_under_way"
	ReasonWaveStaysWell   = "wave_soaking"
	ReasonWaveUnreachable = "wave_unreachable"
	ReasonWaveTooFew      = "wave_too_few"
	ReasonWaveSomeLeft    = "wave_some_left"
	ReasonWaveRate        = "wave_rate"
	ReasonWaveByHand      = "wave_opened_by_hand"

	// How a health check failed.
	ReasonCheckOf           = "check_of"   // a tool
	ReasonCheckTool         = "check_tool" // the call's error
	ReasonCheckCallEnded    = "check_call_ended"
	ReasonCheckToolsLost    = "check_tools_lost"
	ReasonCheckToolsLostAnd = "check_tools_lost_more"
	ReasonCheckHeap         = "check_heap"
	ReasonCheckBadPath      = "check_bad_path"
	ReasonCheckNoPath       = "check_no_path"
	ReasonCheckNoValue      = "check_no_value"
	ReasonCheckNoBaseline   = "check_no_baseline"
	ReasonCheckChanged      = "check_changed"
	ReasonCheckBadPattern   = "check_bad_pattern"
	ReasonCheckIncomparable = "check_incomparable"
	ReasonCheckUnknownOp    = "check_unknown_op"
	ReasonCheckEq           = "check_eq"
	ReasonCheckNe           = "check_ne"
	ReasonCheckLt           = "check_lt"
	ReasonCheckLe           = "check_le"
	ReasonCheckGt           = "check_gt"
	ReasonCheckGe           = "check_ge"
	ReasonCheckMatches      = "check_matches"
)

// Reasons maps the codes of this package to the names of their parameters. The outcome of an
// abort rule is itself a code: "outcome_" and the class of the rule.
var Reasons = map[string][]string{
	ReasonAwaitsReport: {}, ReasonAwaitsPollAfter: {}, ReasonAwaitsConnection: {}, ReasonAwaitsChecks: {},
	ReasonMayStillFetch:       {},
	ReasonStoppedWhileSending: {}, ReasonUnconfirmed: {}, ReasonPollUnseen: {}, ReasonNotSent: {"error", "detail"}, ReasonInterrupted: {},
	ReasonLegacyText: {"detail"},

	ReasonRequeuedBy: {"name"}, ReasonSkippedFor: {"skip"}, ReasonWaveNamed: {"name"}, ReasonAddress: {"address"},
	ReasonConnectionEnded: {"detail"}, ReasonAnswered: {"detail"}, ReasonCallFailed: {"error", "detail"},
	ReasonToolRefused: {"error", "detail"}, ReasonToolRefusedText: {"detail"},
	ReasonJobAccepted: {}, ReasonJobProgress: {"percent"}, ReasonJobDone: {}, ReasonJobFailed: {"error", "detail"},

	ReasonRetired: {}, ReasonMisfit: {}, ReasonLinkRevoked: {}, ReasonNoRoom: {}, ReasonOtherBuild: {"build"}, ReasonRolledBack: {}, ReasonRestartedEarly: {},
	ReasonTooSlow:  {"limit_ms", "sent_bytes", "image_bytes"},
	ReasonStalled:  {"idle_ms", "sent_bytes", "image_bytes"},
	ReasonBrokeOff: {"sent_bytes", "image_bytes"}, ReasonBrokeOffBecause: {"sent_bytes", "image_bytes", "why"},
	ReasonCallRefused: {}, ReasonNoPollBecause: {"why"}, ReasonNoPoll: {}, ReasonImageRefused: {}, ReasonOfferIgnored: {}, ReasonNotFetched: {},
	ReasonNeverConnected: {}, ReasonCheckFailed: {}, ReasonNoConnection: {}, ReasonNoAnswer: {},
	ReasonFlapping:       {"times", "most"},
	ReasonDeviceReported: {"error", "detail"}, ReasonDeviceFailed: {}, ReasonBusyIn: {"name"}, ReasonFitBusy: {"name"},
	ReasonTakenOver:       {"name"},
	ReasonCampaignAborted: {}, ReasonTimeUp: {}, ReasonImageRevoked: {},

	ReasonOutOfScope: {"name"}, ReasonOutOfPlan: {"query"},

	ReasonFailedAttempts: {"times", "within_ms"},

	ReasonByOperator: {"name", "detail"}, ReasonAbortedBy: {"name"},
	ReasonRuleFirst:  {"counted", "of", "scope", "outcome"},
	ReasonRuleShare:  {"counted", "of", "scope", "outcome", "share", "limit"},
	ReasonRuleBound:  {"counted", "of", "scope", "outcome", "share", "limit", "bound"},
	ReasonRuleFired:  {"counted", "of", "scope", "outcome", "share", "limit", "sample"},
	ReasonScopeOfAll: {}, ReasonScopeOfWave: {"wave"}, ReasonScopeOfNamedWave: {"wave", "name"},
	ReasonScopeOfBoard: {"name"}, ReasonScopeOfNoBoard: {},
	ReasonLimitFirst: {}, ReasonLimitShare: {"share"}, ReasonNoWindow: {}, ReasonNextWindowOpens: {"opens_at"},
	ReasonReleaseRevoked: {"version", "detail"}, ReasonReleaseGone: {}, ReasonImageWasRevoked: {"image", "detail"},
	ReasonImageGone:     {"image"},
	ReasonPlanUnchecked: {}, ReasonPlanChanged: {"why"}, ReasonPlanDiffersField: {"field"},
	ReasonPlanDiffersImage:  {"device", "image"},
	ReasonPlanDiffersDevice: {"device"}, ReasonPlanDiffersImages: {"image"}, ReasonPlanDiffersDigest: {},
	ReasonPlanDiffersApproval: {},
	ReasonImageWithheld:       {"image", "version", "cause"},
	ReasonWavePassed:          {"name", "verdict"}, ReasonWaveIsBad: {"name", "verdict"}, ReasonWaveIsBadGate: {"name", "verdict"},

	ReasonActorGone: {"name"}, ReasonActorNoOperator: {"name"},
	ReasonRollbackNothing: {}, ReasonRollbackUnderWay: {"name"}, ReasonRollbackWaits: {"name"},
	ReasonRollbackPartly: {"devices"}, ReasonRollbackRefused: {"error"},

	ReasonWaveEmpty: {}, ReasonWaveNoVerdict: {"left_out"}, ReasonWaveHopeless: {"succeeded", "of", "share", "needed"},
	ReasonWaveUnderWay: {"open", "size"}, ReasonWaveStaysWell: {"devices", "soak_ms"},
	ReasonWaveUnreachable: {"verdicts", "needed", "unreachable"}, ReasonWaveTooFew: {"succeeded", "of", "share", "needed"},
	ReasonWaveSomeLeft: {"succeeded", "of", "share", "unreachable"}, ReasonWaveRate: {"succeeded", "of", "share"}, ReasonWaveByHand: {},

	ReasonCheckOf: {"tool", "why"}, ReasonCheckTool: {"error", "detail"}, ReasonCheckCallEnded: {"state"},
	ReasonCheckToolsLost:    {"tools"},
	ReasonCheckToolsLostAnd: {"tools", "more"}, ReasonCheckHeap: {"after_bytes", "before_bytes", "share", "least"},
	ReasonCheckBadPath: {"path", "detail"}, ReasonCheckNoPath: {"path"}, ReasonCheckNoValue: {"path", "op"},
	ReasonCheckNoBaseline: {"path"},
	ReasonCheckChanged:    {"path", "before", "value"}, ReasonCheckBadPattern: {"path", "detail"},
	ReasonCheckIncomparable: {"path", "value", "want"}, ReasonCheckUnknownOp: {"path", "op"},
	ReasonCheckEq: {"path", "value", "want"}, ReasonCheckNe: {"path", "value", "want"}, ReasonCheckLt: {"path", "value", "want"},
	ReasonCheckLe: {"path", "value", "want"}, ReasonCheckGt: {"path", "value", "want"}, ReasonCheckGe: {"path", "value", "want"},
	ReasonCheckMatches: {"path", "value", "want"},

	"outcome_any": {}, "outcome_failed": {}, "outcome_timed_out": {}, "outcome_rolled_back": {},
	"outcome_wrong_build": {}, "outcome_unhealthy": {}, "outcome_rejected": {},
}

func outcomeCode(class string) string { return "outcome_" + class }
