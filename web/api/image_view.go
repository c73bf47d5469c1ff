package api

import (
	"context"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
	"fleetd/web/i18n"
)

// imageView is a firmware image. All fields but board, notes and file_name were read from its
// bytes.
type imageView struct {
	SHA256         string                    `json:"sha256" doc:"Of the bytes that devices get: the image's name"`
	Size           int64                     `json:"size" doc:"Bytes that devices get"`
	FileName       string                    `json:"file_name"`
	Board          string                    `json:"board" doc:"The board it was built for, as stated by an operator; empty: every board with the chip"`
	Notes          string                    `json:"notes"`
	Chip           string                    `json:"chip"`
	Version        string                    `json:"version" doc:"As devices will report it"`
	Project        string                    `json:"project"`
	IDFVersion     string                    `json:"idf_version"`
	ELFSHA256      string                    `json:"elf_sha256" doc:"As reported by devices that run it"`
	CompiledAt     string                    `json:"compiled_at" doc:"As the build wrote it"`
	SecureVersion  uint32                    `json:"secure_version"`
	MinChipRev     uint16                    `json:"min_chip_rev" doc:"Oldest silicon that runs it: major * 100 + minor"`
	MaxChipRev     uint16                    `json:"max_chip_rev" doc:"65535: no limit"`
	FlashSize      int64                     `json:"flash_size" doc:"Bytes, as the header says; 0 if unknown"`
	MergedBinary   bool                      `json:"merged_binary" doc:"It was extracted from a merged-binary.bin"`
	Signatures     []firmware.ImageSignature `json:"signatures" nullable:"false" doc:"Secure Boot v2"`
	Manifest       *manifestView             `json:"manifest" doc:"Manifest signed with a release key; null if unsigned"`
	NotOfferable   string                    `json:"not_offerable" doc:"Why it cannot be offered at boot polls, only pushed; empty if it can be offered"`
	Warnings       []versionWarning          `json:"warnings" nullable:"false" doc:"Where stock firmware may read the version differently from what its author meant"`
	Withheld       string                    `json:"withheld" doc:"Why no release, campaign, link or blank board can use it now; empty if they can"`
	WithheldCode   string                    `json:"withheld_code" doc:"Reason code of withheld; empty if there is none" example:"unsigned"`
	WithheldParams map[string]any            `json:"withheld_params" doc:"Parameters of the code"`
	UploadedBy     actorView                 `json:"uploaded_by"`
	CreatedAt      time.Time                 `json:"created_at"`
	RevokedAt      *time.Time                `json:"revoked_at" doc:"It is never served from this time"`
	RevokedBy      string                    `json:"revoked_by"`
	RevokeReason   string                    `json:"revoke_reason"`
}

// A versionWarning is a code with its parameters.
type versionWarning struct {
	Code   firmware.VersionWarningCode `json:"code" enum:"version_no_number,version_number_too_large,version_suffix_ignored,version_too_many_parts,version_is_date"`
	Params versionWarningParams        `json:"params"`
}

type versionWarningParams struct {
	Part string `json:"part" doc:"Part of the version, between dots; empty: the whole version"`
	Read string `json:"read" doc:"What a board reads instead; empty: nothing"`
}

func versionWarnings(i firmware.Image) []versionWarning {
	all := []versionWarning{}
	for _, w := range i.VersionWarnings() {
		all = append(all, versionWarning{w.Code, versionWarningParams{w.Part, w.Read}})
	}
	return all
}

// manifestView is a signed manifest of an image.
type manifestView struct {
	Manifest  string `json:"manifest" doc:"The text that was signed"`
	Signature string `json:"signature" doc:"Ed25519, base64"`
	Key       string `json:"key" doc:"Public key that verifies the signature, hex; empty if not known"`
	Checked   bool   `json:"checked" doc:"The key is one of those given to this server"`
}

func manifest(i firmware.Image) *manifestView {
	if i.Manifest == "" {
		return nil
	}
	return &manifestView{i.Manifest, i.ManifestSignature, i.ManifestKey, i.ManifestChecked}
}

// TransformSchema marks the manifest as nullable.
func (imageView) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "manifest")
}

// judgedImages returns a function that returns the view of an image, with the reason if it is
// withheld today.
func (a *api) judgedImages(ctx context.Context, images []firmware.Image) (func(firmware.Image) imageView, error) {
	limits, err := a.Firmware.Limits(ctx, images)
	return func(i firmware.Image) imageView { return newImageView(i, limits.Why(i, "")) }, err
}

// whyWithheld returns the text of a verdict, whose codes are those of refusals.
func whyWithheld(r fleet.Reason) string {
	if r.Is("") {
		return ""
	}
	return i18n.ErrorDetail(&fleet.Error{Code: r.Code, Params: r.Params})
}

func newImageView(i firmware.Image, withheld fleet.Reason) imageView {
	return imageView{Withheld: whyWithheld(withheld), WithheldCode: withheld.Code, WithheldParams: paramsOf(withheld),
		Manifest: manifest(i), SHA256: i.SHA256, Size: i.Size, FileName: i.FileName, Board: i.Board,
		Notes: i.Notes, Chip: i.Chip,
		Version: i.Version, Project: i.Project, IDFVersion: i.IDFVersion, ELFSHA256: i.ELFSHA256, CompiledAt: i.CompiledAt,
		SecureVersion: i.SecureVersion, MinChipRev: i.MinChipRev, MaxChipRev: i.MaxChipRev, FlashSize: i.FlashSize,
		MergedBinary: i.MergedBinary, Signatures: orEmpty(i.Signatures), NotOfferable: i.NotOfferable,
		Warnings:   versionWarnings(i),
		UploadedBy: actor(i.UploadedBy), CreatedAt: utc(i.CreatedAt), RevokedAt: utcOrNil(i.RevokedAt),
		RevokedBy: i.RevokedBy, RevokeReason: i.RevokeReason}
}

type releaseView struct {
	ID        string                `json:"id" format:"uuid"`
	Version   string                `json:"version"`
	Notes     string                `json:"notes"`
	State     firmware.ReleaseState `json:"state" enum:"draft,released,deprecated,revoked"`
	Images    []imageView           `json:"images" nullable:"false" doc:"By board, then chip"`
	CreatedBy actorView             `json:"created_by"`
	CreatedAt time.Time             `json:"created_at"`
	ChangedAt *time.Time            `json:"changed_at" doc:"When the state last changed"`
	Reason    string                `json:"reason" doc:"Why it was deprecated or revoked"`
}

func (a *api) releaseOf(ctx context.Context, r firmware.Release) (releaseView, error) {
	view, err := a.judgedImages(ctx, r.Images)
	return release(r, view), err
}

func release(r firmware.Release, image func(firmware.Image) imageView) releaseView {
	return releaseView{ID: r.ID.String(), Version: r.Version, Notes: r.Notes, State: r.State,
		Images:    viewed(r.Images, image),
		CreatedBy: actor(r.CreatedBy), CreatedAt: utc(r.CreatedAt), ChangedAt: utcOrNil(&r.ChangedAt), Reason: r.Reason}
}

// viewed converts items of the domain into views.
func viewed[D, V any](items []D, view func(D) V) []V { return listOf(items, view).Body.Items }

// FitInput is the query for the devices that an image or release fits.
type FitInput struct {
	Query          string                `query:"q" maxLength:"1024" doc:"Filter; without it, every device in service"`
	Mode           firmware.DispatchMode `query:"mode" enum:"auto,push,pull" default:"auto" doc:"How the devices would be notified"`
	AllowDowngrade bool                  `query:"allow_downgrade" doc:"Include devices that run a newer version"`
}

func (in FitInput) query() firmware.FitQuery {
	return firmware.FitQuery{Query: in.Query, Options: firmware.FitOptions{Mode: in.Mode,
		AllowDowngrade: in.AllowDowngrade}}
}

type fitView struct {
	Matched          int              `json:"matched"`
	Fit              int              `json:"fit"`
	Sample           []fleet.DeviceID `json:"sample" nullable:"false" doc:"Some of the devices that fit"`
	RolledBack       int              `json:"rolled_back" doc:"Devices that fit but have rolled back this build before; fit does not count them, but campaigns include them"`
	RolledBackSample []fleet.DeviceID `json:"rolled_back_sample" nullable:"false" doc:"Some of these"`
	Misfits          []misfitsView    `json:"misfits" nullable:"false" doc:"The devices that do not fit, by reason and board; the reason of most of them first"`
}

func fit(r firmware.FitReport) fitView {
	return fitView{Matched: r.Matched, Fit: r.Fit, Sample: orEmpty(r.Sample), RolledBack: r.RolledBack,
		RolledBackSample: orEmpty(r.RolledBackSample), Misfits: viewed(r.Misfits, misfits)}
}

type misfitsView struct {
	Reason       firmware.SkipReason `json:"reason" example:"too_large"`
	Board        string              `json:"board" doc:"Time zone of the devices; empty if they have none"`
	Detail       string              `json:"detail" doc:"Of one of them"`
	DetailCode   string              `json:"detail_code" doc:"Reason code of detail; empty if there is none" example:"fit_slot"`
	DetailParams map[string]any      `json:"detail_params" doc:"Parameters of the code"`
	Count        int                 `json:"count"`
	Sample       []fleet.DeviceID    `json:"sample" nullable:"false" doc:"Some of the devices"`
}

func misfits(m firmware.Misfits) misfitsView {
	return misfitsView{Reason: m.Reason, Board: m.Board, Detail: because(m.Detail), DetailCode: m.Detail.Code,
		DetailParams: paramsOf(m.Detail), Count: m.Count, Sample: orEmpty(m.Sample)}
}

// TransformSchema lists the reasons of the domain.
func (misfitsView) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	for _, reason := range firmware.SkipReasons {
		s.Properties["reason"].Enum = append(s.Properties["reason"].Enum, string(reason))
	}
	return s
}
