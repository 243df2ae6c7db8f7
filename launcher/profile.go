package launcher

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/profiles"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// The profiles of -profile. Each rank makes them and writes each to a file (package profile of
// internal/mpi). When all ranks have ended, gorun reads these files from the hosts, and merges them
// into one file for each kind.
//
//	rank 0 ─ file ─ host ─┐
//	rank 1 ─ file ─ host ─┼─ fetcher ─► readAhead files ─► profiles.Writer ─► DIR/weft-JOB.cpu.pprof
//	…                    ─┘

const (
	// profileGrace is how long gorun reads profiles if the job's timeout or a second SIGINT has ended the
	// job.
	profileGrace = 10 * time.Second
)

// checkProfileDir makes the directory for profiles, and checks that files can be made there. id is the id of
// the job's first run.
func (s *session) checkProfileDir(id string) error {
	dir, err := filepath.Abs(s.job.ProfileDir)
	if err != nil {
		return err
	}
	s.profileDir = dir
	err = s.interruptible(func() error {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return err
		}
		part, err := s.partDir(id)
		if err != nil {
			return err
		}
		return os.Remove(part)
	})
	var coded *startError
	if err != nil && !errors.As(err, &coded) {
		return fmt.Errorf("-profile-dir (job.profile_dir): %w", err)
	}
	return err
}

// partDir makes a directory in s.profileDir for profiles that are not complete. The caller removes it. If gorun
// is killed, the watchdog removes it.
func (s *session) partDir(id string) (string, error) {
	dir := filepath.Join(s.profileDir, ".weft-"+id)
	s.watchdog.RemoveDir(dir) // before it exists, so that it is never left
	return dir, os.Mkdir(dir, 0o700)
}

// merged is the result of one kind of profile.
type merged struct {
	kind  string
	ranks int    // number of ranks whose profiles are in the file
	path  string // of the file; "": no rank has a profile
}

// lostProfiles are ranks of a group without a profile of some kind, all for the same reason.
type lostProfiles struct {
	group  int
	reason string
}

// collectProfiles reads the profiles of all ranks and writes the merged files. It prints where these are,
// and which ranks have no profile, and why. An error means that the files could not be written, or that
// the user has ended gorun meanwhile; then there are no files. The ranks have ended, and the tree is
// still open.
func (r *run) collectProfiles(ctx context.Context) error {
	if len(r.job.Profile) == 0 || !slices.ContainsFunc(r.ranks, func(rk rank) bool { return rk.pid != 0 }) {
		return nil
	}
	ctx, cancel := r.profileContext(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { r.files.stop(context.Cause(ctx)) })
	defer stop()
	dir, err := r.partDir(r.id)
	if err != nil {
		return profileError(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	lost := make(map[lostProfiles]map[string][]int) // ranks, by reason and kind
	var all []merged
	for i, kind := range r.job.Profile {
		m, err := r.writeProfile(i, filepath.Join(dir, kind), lost)
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return profileError(err)
		}
		all = append(all, m)
	}
	for i, m := range all {
		if m.path == "" {
			continue
		}
		name := filepath.Join(r.profileDir, fmt.Sprintf("weft-%s.%s.pprof", r.id, m.kind))
		if err := os.Rename(m.path, name); err != nil {
			return profileError(err)
		}
		all[i].path = name
	}
	for _, line := range lostLines(r.job.Profile, lost) {
		r.printLine(line)
	}
	for _, m := range all {
		if m.path != "" {
			r.printLine(fmt.Sprintf("%s profile of %s: %s", m.kind, plural(m.ranks, "rank"), m.path))
		}
	}
	return nil
}

// profileContext returns a context for reading profiles: it ends with ctx, and at the job's deadline or,
// if gorun must end soon, after profileGrace.
func (r *run) profileContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if r.limitDrain {
		return context.WithTimeoutCause(ctx, profileGrace, fmt.Errorf("reading them took longer than %v", profileGrace))
	}
	if !r.deadline.IsZero() {
		late := &startError{proto.ExitTimeout, fmt.Sprintf("the job ran longer than its timeout of %v", r.job.Timeout)}
		return context.WithDeadlineCause(ctx, r.deadline, late)
	}
	return context.WithCancel(ctx)
}

// profileError returns the error of profiles that cannot be collected. It leaves out the names of
// temporary files.
func profileError(err error) error {
	return fmt.Errorf("the profiles are lost: %w", withoutPath(err))
}

// writeProfile merges the profiles with the index file in Prepare.RankFiles to a new file, path. It adds the ranks
// that have no profile to lost.
func (r *run) writeProfile(file int, path string, lost map[lostProfiles]map[string][]int) (m merged, err error) {
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return m, err
	}
	m.kind = r.job.Profile[file]
	m.ranks, err = r.mergeProfiles(out, r.rankInfos(false), file, loseTo(lost, m.kind))
	if m.ranks > 0 {
		m.path = path
	}
	if e := out.Close(); err == nil {
		err = e
	}
	return m, err
}

// loseTo returns a function that adds a rank without a profile of a kind to lost.
func loseTo(lost map[lostProfiles]map[string][]int, kind string) func(rk *rankInfo, reason string) {
	return func(rk *rankInfo, reason string) {
		key := lostProfiles{rk.group, reason}
		if lost[key] == nil {
			lost[key] = make(map[string][]int)
		}
		lost[key][kind] = append(lost[key][kind], rk.Number-rk.First)
	}
}

// mergeProfiles reads the file with this number from the ranks, and writes the merged profile to out. It returns the
// number of ranks in the profile, and calls lose for those that have none. The error is that of writing.
func (r *run) mergeProfiles(out io.Writer, infos []rankInfo, file int, lose func(rk *rankInfo, reason string)) (ranks int, err error) {
	w := profiles.NewWriter(out)
	err = r.readFiles(infos, file, func(rk *rankInfo, in io.Reader) error {
		reason, err := addProfile(w, rk, in)
		if err != nil {
			return err
		}
		if reason == "" {
			ranks++
		} else {
			lose(rk, reason)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return ranks, w.Close()
}

// addProfile reads the frames that a rank has written, and adds the profiles in them to w. reason says
// why the rank has no profile, or not a complete one; "": it has one. The error is that of w.
func addProfile(w *profiles.Writer, rk *rankInfo, from io.Reader) (reason string, err error) {
	labels := rk.profileLabels()
	frames := bufio.NewReader(from)
	last := byte(0) // kind of the last frame; 0: there is none
	for n := 0; ; n++ {
		kind, body, err := wire.ReadProfile(frames)
		switch {
		case errors.Is(err, io.EOF):
			if last == wire.ProfileData {
				return "", nil
			}
			if last != 0 {
				return rk.cut, nil
			}
			return rk.nothing, nil
		case errors.Is(err, io.ErrUnexpectedEOF):
			return rk.cut, nil
		case errors.Is(err, wire.ErrProfile):
			return "what it has written is not a profile", nil
		case err != nil:
			return err.Error(), nil
		case n == maxFrames:
			return fmt.Sprintf("it has written more than %d profiles", maxFrames/2), nil
		}
		switch kind {
		case wire.ProfileFailed:
			return proto.OneLine(string(body), maxReason), nil
		case wire.ProfileData:
			switch err := w.Add(body, labels); {
			case errors.Is(err, profiles.ErrInvalid):
				return "what it has written is " + proto.OneLine(err.Error(), maxReason), nil
			case err != nil:
				return "", err
			}
		}
		last = kind
	}
}

const (
	maxReason = 200     // largest number of characters of a reason that a rank gives
	maxFrames = 1 << 16 // largest number of frames of a rank
)

// profileLabels returns the labels of the rank's samples.
func (rk *rankInfo) profileLabels() []profiles.Label {
	labels := []profiles.Label{{Key: "rank", Value: rk.label}, {Key: "host", Value: rk.Host}}
	if rk.app != "" {
		labels = append(labels, profiles.Label{Key: "app", Value: rk.app})
	}
	return labels
}

// lostLines returns a line for each reason for which ranks have no profile. If the same ranks have no
// profile of any of the kinds, the line does not name the kinds.
func lostLines(kinds []string, lost map[lostProfiles]map[string][]int) (lines []string) {
	keys := slices.SortedFunc(maps.Keys(lost), func(a, b lostProfiles) int {
		return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(a.reason, b.reason))
	})
	for _, key := range keys {
		byKind := lost[key]
		done := make(map[string]bool)
		for _, kind := range kinds {
			ranks := byKind[kind]
			if len(ranks) == 0 || done[kind] {
				continue
			}
			var same []string
			for _, other := range kinds {
				if slices.Equal(byKind[other], ranks) {
					same, done[other] = append(same, other), true
				}
			}
			what := "profile"
			if len(same) < len(kinds) {
				what = strings.Join(same, ", ") + " profile"
			}
			ofRanks := "rank"
			if len(ranks) > 1 {
				ofRanks = "ranks"
			}
			ofRanks += " " + rankList(ranks)
			if key.group > 0 {
				ofRanks += fmt.Sprintf(" of group %d", key.group)
			}
			lines = append(lines, fmt.Sprintf("no %s of %s: %s", what, ofRanks, key.reason))
		}
	}
	return lines
}
