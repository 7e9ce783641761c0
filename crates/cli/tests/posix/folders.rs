//! Files are opened through every kind of name, in directories that move, are replaced, or are the
//! current one: what is in a managed directory is buffered, and what is not is not.

use crate::harness::{LAZY, SLOW_STORE, Site, with_mounts};

#[test]
fn whatever_name_a_file_is_opened_by_it_is_one_file() {
    for setup in [&LAZY, &SLOW_STORE] {
        let site = Site::new(setup);
        if site.compile("folders.c", &["-pthread"]) {
            // Beside the current directory, on its device.
            site.same(
                "rm -rf $OUT/elsewhere && mkdir $OUT/elsewhere && $BIN/folders $OUT/elsewhere",
            );
        }
    }
}

/// Another program of the run, or of none, makes the name of a directory lead elsewhere.
#[test]
fn a_directory_that_another_process_replaces_is_seen() {
    let site = Site::new(&LAZY);
    let script = "mkdir -p $OUT/x/place sub; echo old > $OUT/x/place/file; echo new > sub/file\n\
        coproc cat; exec 9< $OUT/x/place/file; read was <&9; echo $was\n\
        mv $OUT/x/place $OUT/x/was; ln -s $PWD/sub $OUT/x/place\n\
        exec 9< $OUT/x/place/file; read was <&9; echo $was\n\
        rm $OUT/x/place; mkdir $OUT/x/place; echo third > $OUT/x/place/file\n\
        exec 9< $OUT/x/place/file; read was <&9; echo $was; rm -r $OUT/x";
    site.same(script);
}

/// It was opened where nothing is managed, and is open when it gets a name in a managed directory.
#[test]
fn a_file_that_comes_in_while_it_is_open_is_one_file() {
    for setup in [&LAZY, &SLOW_STORE] {
        let site = Site::new(setup);
        if site.compile("comes_in.c", &[]) {
            site.same("rm -rf $OUT/from && mkdir $OUT/from && $BIN/comes_in $OUT/from");
        }
    }
}

#[test]
fn a_file_is_one_file_through_a_bind_mount_too() {
    let site = Site::new(&LAZY);
    let script = "mkdir $STORE/sub bound && mount --bind $STORE/sub bound\n\
        \"$FOREBAY\" run --config $CONFIG -- bash -c 'cd $STORE/sub; exec 3<> file; echo one >&3\n\
        cat $OUT/bound/file; echo two >&3; cat $OUT/bound/file file; rm file'";
    let Some(ran) = with_mounts(&site, script) else { return };
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "one\none\ntwo\none\ntwo\n"), "{ran:?}");
}
