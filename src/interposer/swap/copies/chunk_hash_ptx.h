// Made from chunk_hash.cu by make_chunk_hash_ptx.sh. Do not edit.
#pragma once

namespace nvshare::interposer {

// clang-format off
inline constexpr char kChunkHashPtx[] = R"ptx(
.version 6.0
.target sm_52
.address_size 64
.visible .entry nvshare_chunk_hash(
	.param .u64 nvshare_chunk_hash_param_0,
	.param .u64 nvshare_chunk_hash_param_1,
	.param .u64 nvshare_chunk_hash_param_2
)
{
	.reg .pred 	%p<11>;
	.reg .b32 	%r<15>;
	.reg .b64 	%rd<222>;
	.shared .align 8 .b8 _ZZ18nvshare_chunk_hashE5first[2048];
	.shared .align 8 .b8 _ZZ18nvshare_chunk_hashE6second[2048];
	ld.param.u64 	%rd48, [nvshare_chunk_hash_param_2];
	mov.u32 	%r3, %ctaid.x;
	cvt.s64.s32 	%rd3, %r3;
	setp.ge.u64 	%p1, %rd3, %rd48;
	@%p1 bra 	LBB0_19;
	ld.param.u64 	%rd46, [nvshare_chunk_hash_param_0];
	ld.param.u64 	%rd47, [nvshare_chunk_hash_param_1];
	cvta.to.global.u64 	%rd1, %rd47;
	cvta.to.global.u64 	%rd2, %rd46;
	mov.u32 	%r5, %tid.x;
	shl.b64 	%rd49, %rd3, 3;
	add.s64 	%rd50, %rd2, %rd49;
	ld.global.u64 	%rd51, [%rd50];
	cvt.u64.u32 	%rd4, %r5;
	mul.lo.s64 	%rd52, %rd4, -7046029254386353131;
	add.s64 	%rd206, %rd52, 2611923443488327891;
	mul.lo.s64 	%rd53, %rd4, 4417276706812531889;
	add.s64 	%rd207, %rd53, 1376283091369227076;
	mul.wide.u32 	%rd54, %r5, 16;
	add.s64 	%rd55, %rd54, %rd51;
	add.s64 	%rd205, %rd55, 16384;
	mov.u32 	%r14, -8;
LBB0_2:
	ld.v2.u64 	{%rd56, %rd57}, [%rd205+-16384];
	ld.v2.u64 	{%rd58, %rd59}, [%rd205+-12288];
	ld.v2.u64 	{%rd60, %rd61}, [%rd205+-8192];
	ld.v2.u64 	{%rd62, %rd63}, [%rd205+-4096];
	ld.v2.u64 	{%rd64, %rd65}, [%rd205];
	ld.v2.u64 	{%rd66, %rd67}, [%rd205+4096];
	ld.v2.u64 	{%rd68, %rd69}, [%rd205+8192];
	ld.v2.u64 	{%rd70, %rd71}, [%rd205+12288];
	xor.b64  	%rd72, %rd56, %rd206;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd72, 29;
	shr.b64 	%rhs, %rd72, 35;
	add.u64 	%rd73, %lhs, %rhs;
	}
	mul.lo.s64 	%rd74, %rd73, -4658895280553007687;
	xor.b64  	%rd75, %rd74, %rd57;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd75, 29;
	shr.b64 	%rhs, %rd75, 35;
	add.u64 	%rd76, %lhs, %rhs;
	}
	mul.lo.s64 	%rd77, %rd76, -4658895280553007687;
	add.s64 	%rd78, %rd57, %rd207;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd78, 37;
	shr.b64 	%rhs, %rd78, 27;
	add.u64 	%rd79, %lhs, %rhs;
	}
	mul.lo.s64 	%rd80, %rd79, -7723592293110705685;
	add.s64 	%rd81, %rd80, %rd56;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd81, 37;
	shr.b64 	%rhs, %rd81, 27;
	add.u64 	%rd82, %lhs, %rhs;
	}
	mul.lo.s64 	%rd83, %rd82, -7723592293110705685;
	xor.b64  	%rd84, %rd58, %rd77;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd84, 29;
	shr.b64 	%rhs, %rd84, 35;
	add.u64 	%rd85, %lhs, %rhs;
	}
	mul.lo.s64 	%rd86, %rd85, -4658895280553007687;
	xor.b64  	%rd87, %rd86, %rd59;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd87, 29;
	shr.b64 	%rhs, %rd87, 35;
	add.u64 	%rd88, %lhs, %rhs;
	}
	mul.lo.s64 	%rd89, %rd88, -4658895280553007687;
	add.s64 	%rd90, %rd59, %rd83;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd90, 37;
	shr.b64 	%rhs, %rd90, 27;
	add.u64 	%rd91, %lhs, %rhs;
	}
	mul.lo.s64 	%rd92, %rd91, -7723592293110705685;
	add.s64 	%rd93, %rd92, %rd58;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd93, 37;
	shr.b64 	%rhs, %rd93, 27;
	add.u64 	%rd94, %lhs, %rhs;
	}
	mul.lo.s64 	%rd95, %rd94, -7723592293110705685;
	xor.b64  	%rd96, %rd60, %rd89;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd96, 29;
	shr.b64 	%rhs, %rd96, 35;
	add.u64 	%rd97, %lhs, %rhs;
	}
	mul.lo.s64 	%rd98, %rd97, -4658895280553007687;
	xor.b64  	%rd99, %rd98, %rd61;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd99, 29;
	shr.b64 	%rhs, %rd99, 35;
	add.u64 	%rd100, %lhs, %rhs;
	}
	mul.lo.s64 	%rd101, %rd100, -4658895280553007687;
	add.s64 	%rd102, %rd61, %rd95;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd102, 37;
	shr.b64 	%rhs, %rd102, 27;
	add.u64 	%rd103, %lhs, %rhs;
	}
	mul.lo.s64 	%rd104, %rd103, -7723592293110705685;
	add.s64 	%rd105, %rd104, %rd60;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd105, 37;
	shr.b64 	%rhs, %rd105, 27;
	add.u64 	%rd106, %lhs, %rhs;
	}
	mul.lo.s64 	%rd107, %rd106, -7723592293110705685;
	xor.b64  	%rd108, %rd62, %rd101;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd108, 29;
	shr.b64 	%rhs, %rd108, 35;
	add.u64 	%rd109, %lhs, %rhs;
	}
	mul.lo.s64 	%rd110, %rd109, -4658895280553007687;
	xor.b64  	%rd111, %rd110, %rd63;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd111, 29;
	shr.b64 	%rhs, %rd111, 35;
	add.u64 	%rd112, %lhs, %rhs;
	}
	mul.lo.s64 	%rd113, %rd112, -4658895280553007687;
	add.s64 	%rd114, %rd63, %rd107;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd114, 37;
	shr.b64 	%rhs, %rd114, 27;
	add.u64 	%rd115, %lhs, %rhs;
	}
	mul.lo.s64 	%rd116, %rd115, -7723592293110705685;
	add.s64 	%rd117, %rd116, %rd62;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd117, 37;
	shr.b64 	%rhs, %rd117, 27;
	add.u64 	%rd118, %lhs, %rhs;
	}
	mul.lo.s64 	%rd119, %rd118, -7723592293110705685;
	xor.b64  	%rd120, %rd64, %rd113;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd120, 29;
	shr.b64 	%rhs, %rd120, 35;
	add.u64 	%rd121, %lhs, %rhs;
	}
	mul.lo.s64 	%rd122, %rd121, -4658895280553007687;
	xor.b64  	%rd123, %rd122, %rd65;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd123, 29;
	shr.b64 	%rhs, %rd123, 35;
	add.u64 	%rd124, %lhs, %rhs;
	}
	mul.lo.s64 	%rd125, %rd124, -4658895280553007687;
	add.s64 	%rd126, %rd65, %rd119;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd126, 37;
	shr.b64 	%rhs, %rd126, 27;
	add.u64 	%rd127, %lhs, %rhs;
	}
	mul.lo.s64 	%rd128, %rd127, -7723592293110705685;
	add.s64 	%rd129, %rd128, %rd64;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd129, 37;
	shr.b64 	%rhs, %rd129, 27;
	add.u64 	%rd130, %lhs, %rhs;
	}
	mul.lo.s64 	%rd131, %rd130, -7723592293110705685;
	xor.b64  	%rd132, %rd66, %rd125;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd132, 29;
	shr.b64 	%rhs, %rd132, 35;
	add.u64 	%rd133, %lhs, %rhs;
	}
	mul.lo.s64 	%rd134, %rd133, -4658895280553007687;
	xor.b64  	%rd135, %rd134, %rd67;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd135, 29;
	shr.b64 	%rhs, %rd135, 35;
	add.u64 	%rd136, %lhs, %rhs;
	}
	mul.lo.s64 	%rd137, %rd136, -4658895280553007687;
	add.s64 	%rd138, %rd67, %rd131;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd138, 37;
	shr.b64 	%rhs, %rd138, 27;
	add.u64 	%rd139, %lhs, %rhs;
	}
	mul.lo.s64 	%rd140, %rd139, -7723592293110705685;
	add.s64 	%rd141, %rd140, %rd66;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd141, 37;
	shr.b64 	%rhs, %rd141, 27;
	add.u64 	%rd142, %lhs, %rhs;
	}
	mul.lo.s64 	%rd143, %rd142, -7723592293110705685;
	xor.b64  	%rd144, %rd68, %rd137;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd144, 29;
	shr.b64 	%rhs, %rd144, 35;
	add.u64 	%rd145, %lhs, %rhs;
	}
	mul.lo.s64 	%rd146, %rd145, -4658895280553007687;
	xor.b64  	%rd147, %rd146, %rd69;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd147, 29;
	shr.b64 	%rhs, %rd147, 35;
	add.u64 	%rd148, %lhs, %rhs;
	}
	mul.lo.s64 	%rd149, %rd148, -4658895280553007687;
	add.s64 	%rd150, %rd69, %rd143;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd150, 37;
	shr.b64 	%rhs, %rd150, 27;
	add.u64 	%rd151, %lhs, %rhs;
	}
	mul.lo.s64 	%rd152, %rd151, -7723592293110705685;
	add.s64 	%rd153, %rd152, %rd68;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd153, 37;
	shr.b64 	%rhs, %rd153, 27;
	add.u64 	%rd154, %lhs, %rhs;
	}
	mul.lo.s64 	%rd155, %rd154, -7723592293110705685;
	xor.b64  	%rd156, %rd70, %rd149;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd156, 29;
	shr.b64 	%rhs, %rd156, 35;
	add.u64 	%rd157, %lhs, %rhs;
	}
	mul.lo.s64 	%rd158, %rd157, -4658895280553007687;
	xor.b64  	%rd159, %rd158, %rd71;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd159, 29;
	shr.b64 	%rhs, %rd159, 35;
	add.u64 	%rd160, %lhs, %rhs;
	}
	mul.lo.s64 	%rd206, %rd160, -4658895280553007687;
	add.s64 	%rd161, %rd71, %rd155;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd161, 37;
	shr.b64 	%rhs, %rd161, 27;
	add.u64 	%rd162, %lhs, %rhs;
	}
	mul.lo.s64 	%rd163, %rd162, -7723592293110705685;
	add.s64 	%rd164, %rd163, %rd70;
	{
	.reg .b64 %lhs;
	.reg .b64 %rhs;
	shl.b64 	%lhs, %rd164, 37;
	shr.b64 	%rhs, %rd164, 27;
	add.u64 	%rd165, %lhs, %rhs;
	}
	mul.lo.s64 	%rd207, %rd165, -7723592293110705685;
	add.s32 	%r14, %r14, 8;
	add.s64 	%rd205, %rd205, 32768;
	setp.lt.u32 	%p2, %r14, 120;
	@%p2 bra 	LBB0_2;
	cvt.u32.u64 	%r6, %rd4;
	shr.u64 	%rd166, %rd206, 32;
	xor.b64  	%rd167, %rd166, %rd206;
	mul.lo.s64 	%rd168, %rd167, -2960836687051489901;
	shr.u64 	%rd169, %rd168, 29;
	xor.b64  	%rd170, %rd169, %rd168;
	mul.lo.s64 	%rd171, %rd170, -6884282663029611473;
	shr.u64 	%rd172, %rd171, 32;
	xor.b64  	%rd211, %rd172, %rd171;
	shl.b64 	%rd173, %rd4, 3;
	mov.u64 	%rd174, _ZZ18nvshare_chunk_hashE5first;
	add.s64 	%rd9, %rd174, %rd173;
	st.shared.u64 	[%rd9], %rd211;
	shr.u64 	%rd175, %rd207, 32;
	xor.b64  	%rd176, %rd175, %rd207;
	mul.lo.s64 	%rd177, %rd176, -2960836687051489901;
	shr.u64 	%rd178, %rd177, 29;
	xor.b64  	%rd179, %rd178, %rd177;
	mul.lo.s64 	%rd180, %rd179, -6884282663029611473;
	shr.u64 	%rd181, %rd180, 32;
	xor.b64  	%rd210, %rd181, %rd180;
	mov.u64 	%rd182, _ZZ18nvshare_chunk_hashE6second;
	add.s64 	%rd11, %rd182, %rd173;
	st.shared.u64 	[%rd11], %rd210;
	bar.sync 	0;
	setp.lt.u32 	%p3, %r6, 128;
	@%p3 bra 	LBB0_4;
	bra.uni 	LBB0_5;
LBB0_4:
	ld.shared.u64 	%rd183, [%rd9+1024];
	add.s64 	%rd211, %rd211, %rd183;
	st.shared.u64 	[%rd9], %rd211;
	ld.shared.u64 	%rd184, [%rd11+1024];
	add.s64 	%rd210, %rd210, %rd184;
	st.shared.u64 	[%rd11], %rd210;
LBB0_5:
	bar.sync 	0;
	setp.gt.u32 	%p4, %r6, 63;
	@%p4 bra 	LBB0_7;
	ld.shared.u64 	%rd185, [%rd9+512];
	add.s64 	%rd211, %rd211, %rd185;
	st.shared.u64 	[%rd9], %rd211;
	ld.shared.u64 	%rd186, [%rd11+512];
	add.s64 	%rd210, %rd210, %rd186;
	st.shared.u64 	[%rd11], %rd210;
LBB0_7:
	bar.sync 	0;
	setp.gt.u32 	%p5, %r6, 31;
	@%p5 bra 	LBB0_9;
	ld.shared.u64 	%rd187, [%rd9+256];
	add.s64 	%rd211, %rd211, %rd187;
	st.shared.u64 	[%rd9], %rd211;
	ld.shared.u64 	%rd188, [%rd11+256];
	add.s64 	%rd210, %rd210, %rd188;
	st.shared.u64 	[%rd11], %rd210;
LBB0_9:
	bar.sync 	0;
	setp.gt.u32 	%p6, %r6, 15;
	@%p6 bra 	LBB0_11;
	ld.shared.u64 	%rd189, [%rd9+128];
	add.s64 	%rd211, %rd211, %rd189;
	st.shared.u64 	[%rd9], %rd211;
	ld.shared.u64 	%rd190, [%rd11+128];
	add.s64 	%rd210, %rd210, %rd190;
	st.shared.u64 	[%rd11], %rd210;
LBB0_11:
	bar.sync 	0;
	setp.gt.u32 	%p7, %r6, 7;
	@%p7 bra 	LBB0_13;
	ld.shared.u64 	%rd191, [%rd9+64];
	add.s64 	%rd211, %rd211, %rd191;
	st.shared.u64 	[%rd9], %rd211;
	ld.shared.u64 	%rd192, [%rd11+64];
	add.s64 	%rd210, %rd210, %rd192;
	st.shared.u64 	[%rd11], %rd210;
LBB0_13:
	bar.sync 	0;
	setp.gt.u32 	%p8, %r6, 3;
	@%p8 bra 	LBB0_15;
	ld.shared.u64 	%rd193, [%rd9+32];
	add.s64 	%rd211, %rd211, %rd193;
	st.shared.u64 	[%rd9], %rd211;
	ld.shared.u64 	%rd194, [%rd11+32];
	add.s64 	%rd210, %rd210, %rd194;
	st.shared.u64 	[%rd11], %rd210;
LBB0_15:
	bar.sync 	0;
	setp.gt.u32 	%p9, %r6, 1;
	@%p9 bra 	LBB0_17;
	ld.shared.u64 	%rd195, [%rd9+16];
	add.s64 	%rd211, %rd211, %rd195;
	st.shared.u64 	[%rd9], %rd211;
	ld.shared.u64 	%rd196, [%rd11+16];
	add.s64 	%rd210, %rd210, %rd196;
	st.shared.u64 	[%rd11], %rd210;
LBB0_17:
	bar.sync 	0;
	setp.ne.s32 	%p10, %r6, 0;
	@%p10 bra 	LBB0_19;
	ld.shared.u64 	%rd197, [_ZZ18nvshare_chunk_hashE5first+8];
	add.s64 	%rd198, %rd211, %rd197;
	st.shared.u64 	[%rd9], %rd198;
	ld.shared.u64 	%rd199, [_ZZ18nvshare_chunk_hashE6second+8];
	add.s64 	%rd200, %rd210, %rd199;
	st.shared.u64 	[%rd11], %rd200;
	shl.b64 	%rd201, %rd3, 4;
	add.s64 	%rd202, %rd1, %rd201;
	ld.shared.u64 	%rd203, [_ZZ18nvshare_chunk_hashE5first];
	ld.shared.u64 	%rd204, [_ZZ18nvshare_chunk_hashE6second];
	st.global.v2.u64 	[%rd202], {%rd203, %rd204};
LBB0_19:
	ret;
}
)ptx";
// clang-format on

}  // namespace nvshare::interposer
