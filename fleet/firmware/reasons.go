package firmware

// Codes for why an image does not fit a device, and for the events of downloads.
const (
	FitUnknown      = "fit_unknown" // its chip and partitions were never reported
	FitRelease      = "fit_release" // the release has no image for board and chip
	FitUnnamedBoard = "fit_unnamed_board"
	FitBoard        = "fit_board"
	FitChip         = "fit_chip"
	FitRevisionMin  = "fit_rev_min"
	FitRevisionMax  = "fit_rev_max"
	FitRuns         = "fit_runs" // this very build
	FitNoSlot       = "fit_no_slot"
	FitSlot         = "fit_slot" // too small
	FitPartition    = "fit_partition"
	FitHeld         = "fit_held"
	FitRevoked      = "fit_revoked" // with the operator's reason
	FitWithheld     = "fit_withheld"
	FitFloor        = "fit_floor"
	FitIncomparable = "fit_incomparable"
	FitNewer        = "fit_newer"
	FitOtherBuild   = "fit_other_build"
	FitNoTool       = "fit_no_tool"

	TransferResumed    = "download_resumed"     // the GET asks for a part
	TransferRevoked    = "download_revoked"     // cut by fleetd
	TransferUnreadable = "download_unreadable"  // the stored image could not be read
	TransferStuck      = "download_stuck"       // the device accepted no more bytes
	TransferWithheld   = "download_withheld"    // the image may not be used now
	TransferForeign    = "download_foreign"     // link, deployment and plan name different images
	TransferEnded      = "download_conn_closed" // the connection ended
)

// Reasons are the codes of this package with the names of their parameters.
var Reasons = map[string][]string{
	FitUnknown: {}, FitRelease: {"version", "board", "chip"}, FitUnnamedBoard: {}, FitBoard: {"board", "other"},
	FitChip: {"chip", "other"}, FitRevisionMin: {"revision", "least"}, FitRevisionMax: {"revision", "highest"},
	FitRuns: {"version"}, FitNoSlot: {}, FitSlot: {"slot_kib", "image_kib"},
	FitPartition: {"version", "name", "labels"}, FitHeld: {"name", "detail"}, FitRevoked: {"detail"},
	FitIncomparable: {"version"}, FitNewer: {"version", "other"}, FitOtherBuild: {"version"}, FitNoTool: {"tool"},
	TransferResumed: {"offset"}, TransferRevoked: {}, TransferUnreadable: {}, TransferStuck: {}, TransferEnded: {},
	FitWithheld: {"cause"}, FitFloor: {"version", "board", "least"}, TransferWithheld: {"cause"},
	TransferForeign: {"image"},
}
