package wire

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestProfile: ReadProfile must return the frames that AppendProfile has written, report a cut
// frame, and refuse frames of unknown kinds and frames that are too long.
func TestProfile(t *testing.T) {
	text := AppendProfile(AppendProfile(nil, ProfileBegun, nil), ProfileData, []byte("data"))
	r := bytes.NewReader(text)
	kind, body, err := ReadProfile(r)
	require.NoError(t, err)
	require.Equal(t, byte(ProfileBegun), kind)
	require.Empty(t, body)
	kind, body, err = ReadProfile(r)
	require.NoError(t, err)
	require.Equal(t, byte(ProfileData), kind)
	require.Equal(t, "data", string(body))
	_, _, err = ReadProfile(r)
	require.ErrorIs(t, err, io.EOF)

	for n := 1; n < len(text)-ProfileHead; n++ {
		_, _, err := ReadProfile(bytes.NewReader(text[ProfileHead : ProfileHead+n]))
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, "%d bytes", n)
	}
	for _, bad := range [][]byte{{0, 0, 0, 0, 0}, {0, 0, 0, 0, 4}, {1, 0, 0, 1, ProfileData}} {
		_, _, err := ReadProfile(bytes.NewReader(bad))
		require.ErrorIs(t, err, ErrProfile, "%v", bad)
	}
}

func FuzzReadProfile(f *testing.F) {
	f.Add(AppendProfile(AppendProfile(nil, ProfileBegun, nil), ProfileData, []byte("data")))
	f.Add(AppendProfile(nil, ProfileFailed, []byte("no")))
	f.Add([]byte{255, 255, 255, 0, ProfileData, 1})
	f.Fuzz(func(t *testing.T, text []byte) {
		var again []byte
		r := bytes.NewReader(text)
		for {
			kind, body, err := ReadProfile(r)
			if err != nil {
				if !errors.Is(err, ErrProfile) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Fatal(err)
				}
				break
			}
			again = AppendProfile(again, kind, body)
		}
		if !bytes.HasPrefix(text, again) {
			t.Fatalf("%x was read as %x", text, again)
		}
	})
}
